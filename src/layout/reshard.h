/* reshard.h -- the conversion of a tensor from one layout to another: the messages between
 * ranks.
 *
 *     from  "shard(0) on tp", tp=2            to  "shard(1) on tp"
 *
 *       A A A A   tp 0                          A A | A A
 *       A A A A                                 A A | A A        all-to-all on tp:
 *       -------               --->              B B | B B        the lower left and the upper
 *       B B B B   tp 1                          B B | B B        right change hands
 *       B B B B                                 tp 0  tp 1
 *
 * A plan is a kind and the axes of its group. From it, each rank derives its own part: the moves of
 * boxes (moves.h) that it receives and sends, peer by peer. The n-th move that a rank sends to a
 * peer is the n-th that the peer receives from it. No rank lists the moves of others, so the cost
 * depends on the size of the group, not of the world.
 *
 * Bytes are minimal: a rank receives each element that it wants and lacks once. Among several
 * holders the one in the same group sends it (same coordinates on the other axes). Over two meshes,
 * and among copies, it is the holder with the nearest rank number, then the lowest. A partial value
 * is the sum of all holders: the first in the order of the partial axes is written, the others are
 * added one after another. */
#ifndef LAYOUT_RESHARD_H
#define LAYOUT_RESHARD_H

#include "layout/moves.h"

/* A tensor's layout on a mesh. */
typedef struct {
    const Mesh *mesh; /* ranks of two meshes with one number are one rank */
    Layout layout;    /* must satisfy layout_check (tests check it) */
    int stage;        /* pp coordinate of the ranks that hold it, or ALL_STAGES */
    bool sum_copies;  /* copies are summands, as in gradients before their reduction */
} Sharding;

enum { ALL_STAGES = -1 };

typedef enum {
    RESHARD_NONE,           /* the same storage */
    RESHARD_LOCAL,          /* each rank has the elements that it needs */
    RESHARD_ALL_GATHER,     /* every member sends the same to all others */
    RESHARD_REDUCE_SCATTER, /* member i gets the sum of all members' elements of its part */
    RESHARD_ALL_REDUCE,
    RESHARD_ALL_TO_ALL,
    RESHARD_EXCHANGE, /* none of these: sends and receives */
    N_RESHARD_KINDS
} ReshardKind;

typedef struct {
    ReshardKind kind;
    unsigned axes; /* of the group, in from's view; 0 for none, local, exchange */
    Shape shape;
    Sharding from, to; /* simplified */
    /* Private to this folder: */
    unsigned varies; /* axes of from's view that separate the holders of a rank's elements */
    unsigned summed; /* those of them that are partial */
    bool one_mesh;   /* both views are the same box: axes of one are axes of the other */
    bool has_copies; /* two holders that differ along `varies` may hold one element */
} Reshard;

/* One direction of a rank's part. For collectives the peers are the group, in its order and with
 * the rank itself. For an exchange they are the ranks with a message, in the same order, the rank
 * itself included. The moves of peer i, from move[first[i]] on, are one message of count[i]
 * elements, packed in order. */
typedef struct {
    RankList peers;
    const int64_t *count; /* [peers.n] */
    const int64_t *first; /* [peers.n + 1] */
    const Move *move;
    /* True if the messages back to back are the rank's storage, so nothing needs packing. If all
     * messages are alike (all-gather out, reduce-scatter in, all-reduce): each message is the
     * storage. */
    bool direct;
} ReshardSide;

typedef struct {
    ReshardSide in, out;
    int64_t sent; /* elements that leave the rank, by the best algorithm of the kind */
} ReshardPart;

/* Local. ERR_CHECK if the destination has unreduced sums, over axes or over copies, that the source
 * has reduced. `name` is the tensor's. */
Err reshard_plan(const Sharding *from, const Sharding *to, const Shape *shape, const char *name,
                 Reshard *out);
/* Local. Makes an exchange an all-to-all over groups of ranks, with counts per member; false if
 * it is no exchange, or crosses meshes or stages, or reduces a partial value. Copies that are
 * summands are added by the receiver. */
bool reshard_by_groups(Reshard *r);
/* Local. The part of a rank of either mesh. A rank that holds nothing on both sides has no peers.
 * The lists live in `a`; `temp` is another arena, rewound. O(members), of their spans; for an
 * exchange over two meshes O(ranks). */
Err reshard_for_rank(const Reshard *r, int rank, Arena *a, Arena *temp, ReshardPart *out);
/* Local. The same `sent`; collectives need no lists for it. */
Err reshard_sent(const Reshard *r, int rank, Arena *temp, int64_t *elements);

/* Local. "all-gather on dp_shard", "exchange". */
void reshard_text(Text *t, const Reshard *r);

#endif
