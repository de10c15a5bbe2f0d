/* exchange.h -- the rows that ranks send to the experts of other ranks.
 *
 * Experts are sharded in ep parts, and each part is on etp ranks. A rank sends rows to every part;
 * they are sorted by expert, so those of a part are one piece, and it has room for so many:
 *
 *     rank 0    | a a b . | c d d . |      room 4, ep = 2: experts a b on part 0, c d on part 1
 *     rank 1    | a b b b | d . . . |
 *                  |   all-to-all over ep: part 0 gets the first room of each rank
 *     part 0    | a a b . | a b b b |      the rooms of the ranks
 *                  |   collect_rows
 *               | a a a | b b b b | .      by expert, then by rank, then by token
 *
 * Over etp the rooms of the other ranks are gathered before they are collected. `all` has the
 * offsets of every rank that sends: rank (i, j) along ep x etp is row i etp + j of it, and its room
 * is number j ep + i.
 *
 * A part may get more rows than its room. They take further rounds: round r takes rows r * room ..
 * (r + 1) * room of every part, and a room that a part does not need is sent empty. All ranks of
 * ep x etp have `all`, so they agree on the number of rounds. */
#ifndef DEVICE_EXCHANGE_H
#define DEVICE_EXCHANGE_H

#include "device/device.h"

/* The rows of one local expert that one rank sends. */
typedef struct {
    int64_t in_room; /* first row among the rooms */
    int64_t at;      /* first row among those of the local experts */
    int64_t n;
} ExchangePiece;

static inline int64_t exchange_offset(const Tensor *all, int64_t rank, int64_t expert)
{
    return ((const int32_t *)all->data)[rank * all->stride[0] + expert * all->stride[1]];
}

/* Experts of a part. */
static inline int64_t exchange_experts(const Call *call, int64_t offsets)
{
    return (offsets - 1) / call->attr.exchange.ep;
}

/* Rows of a part that are before row `row` of it and travel in the round. */
static inline int64_t exchange_clip(const Call *call, int64_t row)
{
    const int64_t room = call->attr.exchange.room, in = row - call->attr.exchange.round * room;
    return in < 0 ? 0 : in < room ? in : room;
}

/* The same of rank `rank` and the experts of this part, before expert `expert` of all. */
static inline int64_t exchange_before(const Call *call, const Tensor *all, int64_t rank,
                                      int64_t expert)
{
    const int64_t first = call->attr.exchange.part * exchange_experts(call, all->n[1]);
    return exchange_clip(call,
                         exchange_offset(all, rank, expert) - exchange_offset(all, rank, first));
}

/* The number of rounds that a routing takes, at least 1; offsets[s,m] of ranks in `all`, which may
 * be one rank. The same on all ranks that have them. */
static inline int64_t exchange_rounds(const Attr *attr, const Tensor *all)
{
    const int64_t each = (all->n[1] - 1) / attr->exchange.ep;
    int64_t most = 1;
    for (int64_t s = 0; s < all->n[0]; s++)
        for (int64_t p = 0; p < attr->exchange.ep; p++) {
            const int64_t n =
                exchange_offset(all, s, (p + 1) * each) - exchange_offset(all, s, p * each);
            if (n > most * attr->exchange.room)
                most = (n + attr->exchange.room - 1) / attr->exchange.room;
        }
    return most;
}

/* The piece of rank `rank` and local expert `expert` in the round. O(ranks). */
static inline ExchangePiece exchange_piece(const Call *call, const Tensor *all, int64_t rank,
                                           int64_t expert)
{
    const int64_t each = exchange_experts(call, all->n[1]), ep = call->attr.exchange.ep;
    const int64_t e = call->attr.exchange.part * each + expert;
    const int64_t i = rank / call->attr.exchange.etp, j = rank % call->attr.exchange.etp;
    const int64_t own = exchange_before(call, all, rank, e);
    ExchangePiece p = {.n = exchange_before(call, all, rank, e + 1) - own};
    p.in_room = (j * ep + i) * call->attr.exchange.room + own;
    for (int64_t s = 0; s < all->n[0]; s++)
        p.at += exchange_before(call, all, s, s < rank ? e + 1 : e);
    return p;
}

#endif
