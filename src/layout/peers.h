/* peers.h -- the peers of one rank in a reshard: its senders and receivers. Private to this
 * folder. */
#ifndef LAYOUT_PEERS_H
#define LAYOUT_PEERS_H

#include "layout/reshard.h"

/* Local. True if the rank holds a part of the sharded tensor, which may be empty. */
bool sharding_has(const Sharding *p, int rank);

/* Local. Ranks that may hold elements that `to` wants: of each set of replicas, the one that sends.
 * In no particular order. Without copies no two of them hold the same summand. */
Err peers_senders(const Reshard *r, const StoredPieces *to, Arena *a, RankList *out);
/* Local. Ranks that may want elements that `from` holds and receive them from `from`, not from one
 * of its replicas. With copies they may still prefer another rank. In no particular order. */
Err peers_receivers(const Reshard *r, const StoredPieces *from, Arena *a, RankList *out);

/* Local. The summand of the value that the rank holds: its coordinate along the axes that are
 * summed. */
int peers_summand(const Reshard *r, int rank);

#endif
