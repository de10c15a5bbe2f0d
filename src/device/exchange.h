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
 * is number j ep + i. */
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

/* The piece of rank `rank` and local expert `expert`. O(ranks). */
static inline ExchangePiece exchange_piece(const Call *call, const Tensor *all, int64_t rank,
                                           int64_t expert)
{
    const int64_t each = exchange_experts(call, all->n[1]), ep = call->attr.exchange.ep;
    const int64_t first = call->attr.exchange.part * each, e = first + expert;
    const int64_t i = rank / call->attr.exchange.etp, j = rank % call->attr.exchange.etp;
    const int64_t own = exchange_offset(all, rank, e);
    ExchangePiece p = {.n = exchange_offset(all, rank, e + 1) - own};
    p.in_room = (j * ep + i) * call->attr.exchange.room + own - exchange_offset(all, rank, first);
    for (int64_t s = 0; s < all->n[0]; s++) {
        const int64_t before = exchange_offset(all, s, s < rank ? e + 1 : e);
        p.at += before - exchange_offset(all, s, first);
    }
    return p;
}

#endif
