/* load_plan.h -- who reads which chunk of a checkpoint, and who gets what of it. For load.c.
 *
 *     LoadPlan plan;
 *     TRY(load_plan_open(&plan, ...));
 *     while (load_plan_next(&plan, &chunk)) ...       the same chunks, in one order, on every rank
 *
 * What ranks want of a parameter is listed once, by its first row, with how far down the ones
 * before reach: so those that meet a chunk are found by halving. Chunks are made one by one; their
 * list may be longer than what is worth keeping. */
#ifndef STATE_LOAD_PLAN_H
#define STATE_LOAD_PLAN_H

#include "state/load.h"

/* What a rank has at home of a parameter. */
typedef struct {
    int32_t rank;
    int unit;
    Box box;
    int64_t at, stride[MAX_DIMS]; /* as StatePart has them */
    int64_t reach;                /* past the last row of this and all before it */
} LoadTarget;

/* A box of a chunk that a rank wants. */
typedef struct {
    const LoadTarget *want;
    Box box;
} LoadMove;

typedef struct {
    const ManifestPart *part;
    int64_t number; /* of the chunk, in it */
    int tensor;     /* of the job */
    Box box;
    size_t element; /* bytes */
    int reader;
    int64_t n;
    const LoadMove *move; /* [n], by rank; those of one rank make one message, in this order */
} LoadChunk;

typedef struct {
    const Manifest *manifest;
    const int *tensor; /* [manifest->tensors.n]: of the job; -1: not asked for */
    StateTensors tensors;
    int roles;
    LoadTarget *want;  /* by parameter, then by first row */
    int64_t *first;    /* [parameters + 1] */
    LoadMove *move;    /* room for those of one chunk */
    int64_t max_moves; /* of them */
    int64_t *read;     /* [ranks]: bytes so far */
    int64_t part, chunk;
} LoadPlan;

/* Local. state_matches, of what is asked for; and to[i], unless `to` is NULL: which of `want` the
 * manifest's tensor i is, -1: not asked for. */
Err load_match(const Manifest *m, const StateTensors *want, LoadScope scope, int *to);
/* Local. ERR_CONFIG unless the manifest's tensors are the job's. */
Err load_plan_open(LoadPlan *p, const LoadSettings *s, Arena *a);
/* Local. False after the last. The moves are overwritten by the next. */
bool load_plan_next(LoadPlan *p, LoadChunk *out);
/* Local. The moves of a rank, from *first on. */
int64_t load_moves_of(const LoadChunk *c, int rank, int64_t *first);
static inline int64_t load_chunk_bytes(const LoadChunk *c)
{
    return box_count(&c->box) * (int64_t)c->element;
}

#endif
