/* channel_key.h -- which transfers a device transport moves over one communicator: the collectives
 * of a (group, purpose), or the sends of one rank to another with a purpose. Members match the
 * transfers of a channel in order (MatchChannel of backend.h). Inline, since sheaf-nccl.so uses it
 * too. */
#ifndef COMM_CHANNEL_KEY_H
#define COMM_CHANNEL_KEY_H

#include "comm/comm.h"

/* Identity of a channel, the same on all its members. */
typedef struct {
    const Transfer *t;
    int32_t pair[2]; /* ranks of a pair, the sender first; -1 -1: collectives */
} ChannelKey;

/* Local. The channel of a transfer that `rank` begins. */
static inline ChannelKey channel_key(const Transfer *t, int rank)
{
    if (t->kind == COMM_SEND) return (ChannelKey){t, {rank, t->to.rank}};
    if (t->kind == COMM_RECV) return (ChannelKey){t, {t->from.rank, rank}};
    return (ChannelKey){t, {-1, -1}};
}

static inline int order_of(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

/* Local. Negative, 0, positive: the order in which channels are opened. */
static inline int channel_key_compare(const ChannelKey *a, const ChannelKey *b)
{
    const RankList x = a->t->group, y = b->t->group;
    int order = order_of(a->t->purpose, b->t->purpose);
    for (int i = 0; order == 0 && i < 2; i++) order = order_of(a->pair[i], b->pair[i]);
    if (order == 0) order = order_of(x.n, y.n);
    for (int i = 0; order == 0 && i < x.n; i++) order = order_of(x.rank[i], y.rank[i]);
    return order;
}

static inline RankList channel_members(const ChannelKey *key)
{
    return key->pair[0] < 0 ? key->t->group : (RankList){2, key->pair};
}

/* Local. Sorts n keys and removes equal ones; returns how many are left. */
static inline int channel_keys_unique(ChannelKey *key, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int at = kept;
        const ChannelKey x = key[i];
        while (at > 0 && channel_key_compare(&x, &key[at - 1]) < 0) at--;
        if (at > 0 && channel_key_compare(&x, &key[at - 1]) == 0) continue;
        for (int k = kept++; k > at; k--) key[k] = key[k - 1];
        key[at] = x;
    }
    return kept;
}

#endif
