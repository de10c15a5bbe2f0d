/* slices.h -- cuts a sequence into slices. Pure functions.
 *
 * Causal attention makes later tokens more expensive: a slice reads the keys and values of all
 * slices before it.
 *
 *     tokens   0         9    13  16        slices of equal time, if time is all attention
 *              |---------|----|---|
 *
 * Equal stages that take t_q for slice q end after m sum(t_q) + (P-1) max(t_q): the ramp is as long
 * as the longest slice. (This holds for gpipe and terapipe, forward and backward.) */
#ifndef SCHEDULE_SLICES_H
#define SCHEDULE_SLICES_H

#include <stdint.h>
#include "base/arena.h"

/* The time of a slice of n tokens after b others is
 *
 *     fixed + token n + pair (n b + n (n+1) / 2),      at least `least` */
typedef struct {
    double fixed, token, pair, least;
} SliceCost;

double slice_time(const SliceCost *c, int64_t before, int64_t tokens);

typedef struct {
    int64_t tokens;
    int64_t multiple; /* cuts are at multiples of it: of tp, if that shards sequences */
    int slices;
    int stages, micros; /* P and m */
} SliceRequest;

typedef struct {
    int n;
    const int64_t *cut; /* [n + 1], from 0 to tokens */
    double time;        /* m sum(t_q) + (P-1) max(t_q) */
} SlicePlan;

/* Local. For seq1f1b: slices of equal time, with every cut at the nearest allowed point. The cost
 * of a slice of any length (fixed, least) moves no cut. ERR_CONFIG if there are fewer points than
 * slices. */
Err slices_equal(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out);

/* Local. For terapipe: the exact minimum of the time, with `slices` slices, or with the best number
 * if that is 0. If there are more than MAX_CUT_POINTS points, only every second, third, ...
 * counts. */
enum { MAX_CUT_POINTS = 256 };
Err slices_planned(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out);

#endif
