/* copies.h -- elements that several parts of a cut hold, as runs that the same ranks hold.
 *
 *     2 key heads of 3 on tp=3    part 0: 0 1 2    part 1: 0 1 2 3 4 5    part 2: 3 4 5
 *     runs                        0..2 of parts 0 and 1                   3..5 of parts 1 and 2
 *
 * A gradient of such elements is the sum over their holders: one all-reduce a run. All holders of a
 * run list it, at the same place among those that they share, and each stores it in one piece. */
#ifndef LAYOUT_COPIES_H
#define LAYOUT_COPIES_H

#include "layout/holding.h"

typedef struct {
    int64_t lo, hi;   /* of the row-major elements that the layout leaves to the rank */
    RankList holders; /* in the order of their parts; the rank is one of at least two */
} CopyRun;

/* Local. The runs of the rank, as long as they can be. The layout has passed layout_check.
 * ERR_CHECK when two cuts have copies, or the dim of the one that has is cut once more. O(elements
 * of the dim x parts). */
Err copies_of(const Layout *l, const Mesh *m, const Shape *s, int rank, Arena *a,
              const CopyRun **out, int *n);

#endif
