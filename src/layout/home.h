/* home.h -- how ZeRO cuts a unit's pack, and all that follows from it.
 *
 * The pack of a rank is what `use` leaves it of the unit's parameters, back to back. It is cut over
 * the shard axes by the even rule, in whole grains; a rank's part is its home, and there live its
 * master weights and moments:
 *
 *     use     q 12   k 5   norm 7                    tp 0; on tp 1 the same parameters may be less
 *     pack    q q q q q q q q q q q q k k k k k n n n n n n n
 *     blocks  |       |       |       |       |       |         grain 4, dp_shard=3
 *     home    dp 0 . . . . . .|dp 1 . . . . . |dp 2 . .         each parameter's is a flat map
 *
 * A gather of the pack is one all-gather of the homes, back to back; a reduction of its gradient is
 * the reduce-scatter that undoes it. A parameter that is replicate on tp lies elsewhere on each tp
 * rank when the ones before it are cut unevenly: its home then begins with a cut over tp in name
 * only (every part holds all), so that the flat map may tell tp ranks apart. */
#ifndef LAYOUT_HOME_H
#define LAYOUT_HOME_H

#include "layout/holding.h"

typedef struct {
    const char *name;
    Shape shape;
    Layout use; /* has passed layout_check; cuts of dims only, nothing partial */
} HomeParam;

typedef struct {
    const Mesh *mesh;
    unsigned shard; /* axes of the view of all `use` that the pack is cut over; 0: it is not */
    int64_t grain;
    int n;
    const HomeParam *param; /* borrowed, in the order of the pack */
    int view;               /* from here on derived */
    unsigned model;         /* axes that some parameter is cut over */
    unsigned vary; /* those of them along which packs differ, and where cuts fall with them;
                             * all of `model` or none */
} Home;

/* A stretch of a parameter. */
typedef struct {
    int param;
    int64_t lo, hi; /* of the row-major elements that `use` leaves to the rank */
    int64_t at;     /* of lo, in the rank's home */
} HomePiece;

typedef struct {
    int64_t pack_count;     /* elements that a gathered pack takes */
    const int64_t *pack_at; /* [n + 1] where each parameter begins, then pack_count */
    Span shard;             /* which of them are the rank's home */
    int n_pieces;
    const HomePiece *piece; /* what lies there, in order; none is empty */
} HomeRank;

/* The way of a gradient from where it is computed, in `use`, to its home; sets of axes, 0: nothing
 * to do. In this order, which does not depend on `shard`. */
typedef struct {
    unsigned copies;  /* add up copies of the cuts over these */
    unsigned model;   /* all-reduce over these, which are not of data parallelism */
    unsigned scatter; /* reduce-scatter over these: from use to home */
    unsigned data;    /* all-reduce over these what is left at home */
} HomeReduce;

/* Local. ERR_CHECK unless the axes of `shard` are free in every `use`, and all are of one view. */
Err home_init(Home *h, const Mesh *m, unsigned shard, int64_t grain, const HomeParam *param, int n);

/* Local. The layout of a parameter at home; equal to `use` when nothing is cut. O(parts of the
 * shard axes), in the arena. */
Err home_layout(const Home *h, int param, Arena *a, Layout *out);

/* Local. What a rank has. O(parameters). */
Err home_rank(const Home *h, int rank, Arena *a, HomeRank *out);
/* Local. Elements of each member of the rank's shard group, in its order: the counts of gather and
 * scatter. */
Err home_counts(const Home *h, const HomeRank *of, Arena *a, const int64_t **count);
/* Local. The pieces that the rank counts in the norm and writes to a checkpoint: over all ranks of
 * a stage each element of each parameter once. The lowest coordinate on axes where all hold the
 * same, the first part of those that hold copies, as layout_owner. */
Err home_owned(const Home *h, const HomeRank *of, int rank, Arena *a, const HomePiece **piece,
               int *n);

/* Local. `partial`: axes over which the program leaves the gradient a sum. */
HomeReduce home_reduce(const Home *h, int param, unsigned partial);

#endif
