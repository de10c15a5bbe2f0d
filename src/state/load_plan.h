/* load_plan.h -- assigns each chunk of a checkpoint a reader and its receivers. For load.c.
 *
 *     LoadPlan plan;
 *     TRY(load_plan_open(&plan, ...));
 *     while (load_plan_next(&plan, &chunk)) ...       the same chunks, in one order, on every rank
 *
 * The boxes that ranks need of a parameter are listed once, sorted by first row. Each entry has the
 * largest end row up to it (`reach`), so the boxes that intersect a chunk are found by binary
 * search. Chunks are generated one by one, because the whole list could be large. */
#ifndef STATE_LOAD_PLAN_H
#define STATE_LOAD_PLAN_H

#include "state/load.h"

/* A box of a parameter in a rank's home. */
typedef struct {
    int32_t rank;
    int pack;
    Box box;
    int64_t at, stride[MAX_DIMS]; /* as in StatePart */
    int64_t reach;                /* largest end row of this box and those before it */
} LoadTarget;

/* The intersection of a chunk with a rank's box. */
typedef struct {
    const LoadTarget *want;
    Box box;
} LoadMove;

typedef struct {
    const ManifestPart *part;
    int64_t number; /* of the chunk, in the part */
    int tensor;     /* of the job */
    Box box;
    size_t element; /* bytes */
    int reader;
    int64_t n;
    const LoadMove *move; /* [n], by rank; the boxes of one rank are one message, in this order */
} LoadChunk;

typedef struct {
    const Manifest *manifest;
    const int *tensor; /* [manifest->tensors.n]: of the job; -1: not loaded */
    StateTensors tensors;
    int roles;
    LoadTarget *want;  /* by parameter, then by first row */
    int64_t *first;    /* [parameters + 1] */
    LoadMove *move;    /* [max_moves]: those of the current chunk */
    int64_t max_moves; /* the largest number of boxes of a parameter */
    int64_t *read;     /* [ranks]: bytes assigned so far */
    int64_t part, chunk;
} LoadPlan;

/* Local. ERR_CONFIG unless the manifest's tensors in `scope` are those of `want`; names the first
 * that differs. Unless `to` is NULL, to[i] is the index in `want` of the manifest's tensor i; -1:
 * not loaded. */
Err load_match(const Manifest *m, const StateTensors *want, LoadScope scope, int *to);
/* Local. ERR_CONFIG unless the manifest's tensors are the job's. */
Err load_plan_open(LoadPlan *p, const LoadSettings *s, Arena *a);
/* Local. False after the last chunk. The next call overwrites the moves. */
bool load_plan_next(LoadPlan *p, LoadChunk *out);
/* Local. Returns the number of moves of a rank, which begin at *first. */
int64_t load_moves_of(const LoadChunk *c, int rank, int64_t *first);
static inline int64_t load_chunk_bytes(const LoadChunk *c)
{
    return box_count(&c->box) * (int64_t)c->element;
}

#endif
