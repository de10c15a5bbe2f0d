/* slices.h -- where a sequence is cut into slices.  Pure functions.
 *
 * Causal attention makes later tokens dearer: a slice reads the keys and values of all before it.
 *
 *     tokens   0         9    13  16        slices of equal time, when time is all attention
 *              |---------|----|---|
 *
 * Stages that take t_q for slice q, all alike, end after m sum(t_q) + (P-1) max(t_q): the ramp is
 * as long as the longest slice. (So it is in gpipe and terapipe, forwards and backwards.) */
#ifndef SCHEDULE_SLICES_H
#define SCHEDULE_SLICES_H

#include <stdint.h>
#include "base/arena.h"

/* A slice of n tokens after b others takes
 *
 *     fixed + token n + pair (n b + n (n+1) / 2),      but `least` at least */
typedef struct {
    double fixed, token, pair, least;
} SliceCost;

double slice_time(const SliceCost *c, int64_t before, int64_t tokens);

typedef struct {
    int64_t tokens;
    int64_t multiple; /* cuts are at multiples of it: of tp, when that cuts sequences */
    int slices;
    int stages, micros; /* P and m */
} SliceRequest;

typedef struct {
    int n;
    const int64_t *cut; /* [n + 1], from 0 to tokens */
    double time;        /* m sum(t_q) + (P-1) max(t_q) */
} SlicePlan;

/* Local. For seq1f1b: every cut is where it would be for slices of equal time, moved to the nearest
 * place. What a slice costs however short (fixed, least) moves no cut. ERR_CONFIG when there are
 * fewer places than slices. */
Err slices_equal(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out);

/* Local. For terapipe: the least time of all, exactly; `slices` of them, or when that is 0, as many
 * as are best. Of more than SLICE_PLACES places, every second, third, ... is looked at. */
enum { MAX_CUT_POINTS = 256 };
Err slices_planned(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out);

#endif
