/* home.h -- the ZeRO shards of a unit's pack.
 *
 * The pack of a rank is its local part of the unit's parameters in the `use` layout, back to back.
 * It is sharded over the shard axes by the even rule, in whole grains. A rank's shard is its home,
 * which stores the master weights and moments:
 *
 *     use     q 12   k 5   norm 7                    tp 0; on tp 1 these may be smaller
 *     pack    q q q q q q q q q q q q k k k k k n n n n n n n
 *     blocks  |       |       |       |       |       |         grain 4, dp_shard=3
 *     home    dp 0 . . . . . .|dp 1 . . . . . |dp 2 . .         each parameter's is a flat map
 *
 * A gather of the pack is one all-gather of the homes, back to back. A reduction of its gradient is
 * the inverse reduce-scatter. A parameter that is replicate on tp is stored at different offsets on
 * the tp ranks if the parameters before it are sharded unevenly. Its home then begins with a
 * nominal cut over tp, of which every part holds all, so that the flat map can differ by tp
 * rank. */
#ifndef LAYOUT_HOME_H
#define LAYOUT_HOME_H

#include "layout/holding.h"

typedef struct {
    const char *name;
    Shape shape;
    Layout use; /* has passed layout_check; cuts of dims only, not partial */
} HomeParam;

typedef struct {
    const Mesh *mesh;
    unsigned shard; /* axes, of the view of all `use`, that shard the pack; 0: none */
    int64_t grain;
    int n;
    const HomeParam *param; /* borrowed, in the order of the pack */
    int view;               /* derived, as the members below */
    unsigned model;         /* axes over which some parameter is sharded */
    unsigned vary; /* along these axes packs differ, and flat maps with them: `model`, or 0 */
} Home;

/* A run of elements of a parameter. */
typedef struct {
    int param;
    int64_t lo, hi; /* row-major elements of the rank's local part in `use` */
    int64_t at;     /* offset of lo in the rank's home */
} HomePiece;

typedef struct {
    int64_t pack_count;     /* elements of a gathered pack */
    const int64_t *pack_at; /* [n + 1] offset of each parameter, then pack_count */
    Span shard;             /* the rank's home, as a range of the pack */
    int n_pieces;
    const HomePiece *piece; /* its pieces, in order; none is empty */
} HomeRank;

/* The reduction of a gradient from `use`, in which it is computed, to its home: sets of axes, in
 * this order; 0: nothing to do. The order does not depend on `shard`. */
typedef struct {
    unsigned copies;  /* sum the copies of the cuts over these */
    unsigned model;   /* all-reduce over these, which are not data-parallel */
    unsigned scatter; /* reduce-scatter over these: from use to home */
    unsigned data;    /* all-reduce the home over these */
} HomeReduce;

/* Local. ERR_CHECK unless the axes of `shard` are free in every `use`, and all are of one view. */
Err home_init(Home *h, const Mesh *m, unsigned shard, int64_t grain, const HomeParam *param, int n);

/* Local. The layout of a parameter at home; equal to `use` if the pack is not sharded. O(parts of
 * the shard axes), in the arena. */
Err home_layout(const Home *h, int param, Arena *a, Layout *out);

/* Local. The pack and the home of a rank. O(parameters). */
Err home_rank(const Home *h, int rank, Arena *a, HomeRank *out);
/* Local. Elements of each member of the rank's shard group, in its order: the counts of gather and
 * scatter. */
Err home_counts(const Home *h, const HomeRank *of, Arena *a, const int64_t **count);
/* Local. The pieces that the rank counts in the norm and writes to a checkpoint. Over all ranks of
 * a stage, each element of each parameter is in one piece. The owner has the lowest coordinate on
 * replicate axes and is the first part that holds a copy, as in layout_owner. */
Err home_owned(const Home *h, const HomeRank *of, int rank, Arena *a, const HomePiece **piece,
               int *n);

/* Local. `partial`: axes over which the program leaves the gradient as a sum. */
HomeReduce home_reduce(const Home *h, int param, unsigned partial);

#endif
