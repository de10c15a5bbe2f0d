/* reshard.h -- from one layout to another: who sends what to whom.
 *
 *     from  "shard(0) on tp", tp=2            to  "shard(1) on tp"
 *
 *       A A A A   tp 0                          A A | A A
 *       A A A A                                 A A | A A        all-to-all on tp:
 *       -------               --->              B B | B B        the lower left and the upper
 *       B B B B   tp 1                          B B | B B        right change hands
 *       B B B B                                 tp 0  tp 1
 *
 * A plan is words: a kind, and the axes of its group. A rank asks for its own part: what it takes
 * in and what it gives out, peer by peer, as moves of boxes (moves.h); the n-th move that a rank
 * gives to a peer is the n-th that the peer takes from it. Nobody lists what others do, so a rank
 * of 16,384 is as fast to ask as its group is small.
 *
 * Bytes are minimal: a rank receives what it wants and does not have, once. Of several holders the
 * one in the same group gives it (the same coordinates on the axes that do not matter); over two
 * meshes, and of copies, the one whose number is nearest, then the lowest. What is partial is the
 * sum of all holders: the first in the order of the partial axes is written, the others added, one
 * after another. */
#ifndef LAYOUT_RESHARD_H
#define LAYOUT_RESHARD_H

#include "layout/moves.h"

/* Where a tensor is. */
typedef struct {
    const Mesh *mesh; /* ranks of two meshes with one number are one rank */
    Layout layout;    /* has passed layout_check */
    int stage;        /* the coordinate on pp of the ranks that hold it; ALL_STAGES */
    bool sum_copies;  /* copies are summands: so are gradients as they are computed */
} Sharding;

enum { ALL_STAGES = -1 };

typedef enum {
    RESHARD_NONE,           /* the same storage */
    RESHARD_LOCAL,          /* each rank has what it needs */
    RESHARD_ALL_GATHER,     /* every member gives all others the same */
    RESHARD_REDUCE_SCATTER, /* member i gets the sum of what the members hold of its part */
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
    /* For the files of this folder: */
    unsigned varies; /* along these axes of from's view lie the holders of what a rank wants */
    unsigned summed; /* those of them that are partial */
    bool one_mesh;   /* both views are the same box: axes of one are axes of the other */
    bool has_copies; /* two holders that differ along `varies` may hold one element */
} Reshard;

/* One direction of a rank's part. Of the regular kinds the peers are the group, in its order and
 * with the rank itself; of an exchange those that something comes from or goes to, likewise. The
 * moves of peer i, from move[first[i]] on, are one message of count[i] elements, packed in order.
 */
typedef struct {
    RankList peers;
    const int64_t *count; /* [peers.n] */
    const int64_t *first; /* [peers.n + 1] */
    const Move *move;
    bool direct; /* the messages back to back are the rank's storage: nothing to pack. Where all
                  * are alike (all-gather out, reduce-scatter in, all-reduce): each of them is */
} ReshardSide;

typedef struct {
    ReshardSide in, out;
    int64_t sent; /* elements that leave the rank, by the best way of the kind */
} ReshardPart;

/* Local. ERR_CHECK when the destination has open sums, over axes or over copies, that are not open
 * in the source. `name` is the tensor's. */
Err reshard_plan(const Sharding *from, const Sharding *to, const Shape *shape, const char *name,
                 Reshard *out);
/* Local. A rank of either mesh; one that holds nothing on both sides has no peers. The lists live
 * in `a`; `temp` is another arena, rewound. O(members), of their spans; for an exchange over two
 * meshes O(ranks). */
Err reshard_for_rank(const Reshard *r, int rank, Arena *a, Arena *temp, ReshardPart *out);
/* Local. The same `sent`, for regular kinds without the lists. */
Err reshard_sent(const Reshard *r, int rank, Arena *temp, int64_t *elements);

/* Local. "all-gather on dp_shard", "exchange". */
void reshard_text(Text *t, const Reshard *r);

#endif
