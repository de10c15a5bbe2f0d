/* runs.h -- the moves of a rank, peer by peer. Private to this folder. */
#ifndef LAYOUT_RUNS_H
#define LAYOUT_RUNS_H

#include "layout/peers.h"

/* The moves between a rank and one peer. */
typedef struct {
    int32_t rank;     /* the peer */
    int32_t summand;  /* that the peer sends */
    int32_t distance; /* in rank numbers; the nearest copy is preferred */
    int64_t first, n; /* moves */
    int64_t count;    /* elements */
} Run;

/* Local. The boxes that the rank holds. */
Err stored_at(const Reshard *r, const Sharding *p, int rank, Arena *a, StoredPieces *out);

/* Local. Pushes all moves that `to` receives to `out`: a run for each sender, also for one without
 * moves, in the order in which summands are added. Runs live in `temp`; `out` does not. */
Err runs_receive(const Reshard *r, const StoredPieces *to, Arena *temp, MoveList *out, Run **runs,
                 int *n);
/* Local. The same for all moves that `from` sends, in rank order. */
Err runs_send(const Reshard *r, const StoredPieces *from, Arena *temp, MoveList *out, Run **runs,
              int *n);
/* Local. Elements that `from` sends to these receivers, without itself. */
Err runs_count(const Reshard *r, const StoredPieces *from, RankList receivers, Arena *temp,
               int64_t *count);

#endif
