/* peers.h -- for one rank: which ranks a reshard lets it take from, and which it gives to. For the
 * files of this folder. */
#ifndef LAYOUT_PEERS_H
#define LAYOUT_PEERS_H

#include "layout/reshard.h"

/* Local. Does the rank hold a part of what is in this place, be it an empty one? */
bool sharding_has(const Sharding *p, int rank);

/* Local. Ranks that may hold some of what `to` wants, one of each set of equals: the one that gives
 * it. In no particular order; without copies no two of them hold the same summand. */
Err peers_senders(const Reshard *r, const StoredPieces *to, Arena *a, RankList *out);
/* Local. Ranks that may want some of what `from` holds and take it from `from` rather than from its
 * equals; with copies they may yet prefer another. In no particular order. */
Err peers_receivers(const Reshard *r, const StoredPieces *from, Arena *a, RankList *out);

/* Local. Which summand of the value the rank holds: its place along the axes that are summed. */
int peers_summand(const Reshard *r, int rank);

#endif
