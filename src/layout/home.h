/* home.h -- the ZeRO shards of a unit's pack.
 *
 * The pack of a rank is its use shard of each of the unit's parameters, back to back. It is split
 * evenly over the shard axes, in whole grains. A rank's shard of the pack is its home, which stores
 * the weights, master weights and moments:
 *
 *     use     q 12   k 5   norm 7                    elements on tp 0; on tp 1 they may be fewer
 *     pack    q q q q q q q q q q q q k k k k k n n n n n n n
 *     grains  |       |       |       |       |       |         of 4 elements
 *     home    |dp 0           |dp 1           |dp 2             dp_shard=3
 *
 * In a home, a parameter is a range of the row-major elements of its use shard: a flat map in its
 * layout. A gather of the pack is one all-gather of the homes, back to back. A reduction of its
 * gradient is the inverse reduce-scatter.
 *
 * A parameter that is replicate on tp is stored at different pack offsets on the tp ranks if the
 * parameters before it are sharded unevenly. Its home layout then begins with a nominal cut over
 * tp, each part of which is the whole parameter, so that the flat map can differ by tp rank. */
#ifndef LAYOUT_HOME_H
#define LAYOUT_HOME_H

#include "layout/holding.h"

typedef struct {
    const char *name;
    Shape shape;
    Layout use; /* must satisfy layout_check (tests check it); cuts of dims only, not partial */
} HomeParam;

typedef struct {
    const Mesh *mesh;
    unsigned shard; /* axes that shard the pack, of the view of all `use`; 0: none */
    int64_t grain;  /* elements; no home begins or ends inside a grain, except at the pack's end */
    int n;
    const HomeParam *param; /* [n], borrowed, in the order of the pack */
    /* Derived by home_init: */
    int view;       /* of the mesh, that of all `use` */
    unsigned model; /* axes over which some parameter's `use` is sharded */
    unsigned vary;  /* axes along which packs differ, and flat maps with them: `model`, or 0 */
} Home;

/* Consecutive elements of one parameter in a home. */
typedef struct {
    int param;      /* index in Home.param */
    int64_t lo, hi; /* range of the row-major elements of the rank's use shard */
    int64_t at;     /* element offset of lo in the rank's home */
} HomePiece;

typedef struct {
    int64_t pack_count;     /* elements of the gathered pack on this rank */
    const int64_t *pack_at; /* [n + 1] element offset of each parameter, then pack_count */
    Span shard;             /* the rank's home, as a range of the pack */
    int n_pieces;
    const HomePiece *piece; /* its pieces, in order; none is empty */
} HomeRank;

/* The reduction of a gradient from its use layout, in which it is computed, to its home: four
 * steps, in this order, each over a set of axes; 0: no such step. The order does not depend on
 * `shard`. */
typedef struct {
    unsigned copies;  /* cuts over these give some ranks equal parts: all-reduce among such ranks */
    unsigned model;   /* all-reduce of the use shard over these, which are not data-parallel */
    unsigned scatter; /* reduce-scatter over these: from use to home */
    unsigned data;    /* all-reduce of the home over these */
} HomeReduce;

/* Local. ERR_CHECK unless the axes of `shard` are free in every `use`, and all are of one view. */
Err home_init(Home *h, const Mesh *m, unsigned shard, int64_t grain, const HomeParam *param, int n);

/* Local. The layout of a parameter at home; equal to `use` if the pack is not sharded. O(parts of
 * the shard axes), in the arena. */
Err home_layout(const Home *h, int param, Arena *a, Layout *out);

/* Local. The pack and the home of a rank. O(parameters). */
Err home_rank(const Home *h, int rank, Arena *a, HomeRank *out);
/* Local. Elements of each home in the rank's shard group, in its order: the counts of all-gather
 * and reduce-scatter. */
Err home_counts(const Home *h, const HomeRank *of, Arena *a, const int64_t **count);
/* Local. The pieces that the rank counts in the norm and writes to a checkpoint. Over all ranks of
 * a stage, each element of each parameter is in exactly one such piece: on the rank with the lowest
 * coordinate along replicate axes, and, of several equal parts, in the first; see layout_owner. */
Err home_owned(const Home *h, const HomeRank *of, int rank, Arena *a, const HomePiece **piece,
               int *n);

/* Local. `partial`: axes over which the program leaves the gradient as a partial sum. */
HomeReduce home_reduce(const Home *h, int param, unsigned partial);

#endif
