/* runs.h -- the moves of a rank, peer by peer. For the files of this folder. */
#ifndef LAYOUT_RUNS_H
#define LAYOUT_RUNS_H

#include "layout/peers.h"

/* The moves between a rank and one peer. */
typedef struct {
    int32_t rank;     /* the peer */
    int32_t summand;  /* that it gives */
    int32_t distance; /* that copies are preferred by */
    int64_t first, n; /* moves */
    int64_t count;    /* elements */
} Run;

/* Local. What the rank holds in that place. */
Err stored_at(const Reshard *r, const Sharding *p, int rank, Arena *a, StoredPieces *out);

/* Local. All that `to` takes, pushed to `out`: a run for each giver, also for one that turns out to
 * give nothing, in the order in which summands are added. Runs live in `temp`; `out` does not. */
Err runs_receive(const Reshard *r, const StoredPieces *to, Arena *temp, MoveList *out, Run **runs,
                 int *n);
/* Local. Likewise all that `from` gives, in rank order. */
Err runs_send(const Reshard *r, const StoredPieces *from, Arena *temp, MoveList *out, Run **runs,
              int *n);
/* Local. Elements that `from` gives to these, itself not counted. */
Err runs_count(const Reshard *r, const StoredPieces *from, RankList receivers, Arena *temp,
               int64_t *count);

#endif
