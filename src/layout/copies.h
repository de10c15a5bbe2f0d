/* copies.h -- runs of elements that several ranks hold, because parts of a cut overlap.
 *
 *     2 key heads of 3 on tp=3    part 0: 0 1 2    part 1: 0 1 2 3 4 5    part 2: 3 4 5
 *     runs                        0..2 of parts 0 and 1                   3..5 of parts 1 and 2
 *
 * The gradient of such an element is the sum over its holders: one all-reduce per run. All holders
 * of a run list it, at the same position among the runs that they share. Each holder stores a run
 * contiguously. */
#ifndef LAYOUT_COPIES_H
#define LAYOUT_COPIES_H

#include "layout/holding.h"

typedef struct {
    int64_t lo, hi;   /* row-major elements of the rank's storage */
    RankList holders; /* in the order of their parts; the rank itself and at least one more */
} CopyRun;

/* Local. Lists the runs of the rank, each as long as possible. The layout must satisfy layout_check
 * (tests check it). ERR_CHECK if two cuts have copies, or if the dim of the cut with copies is cut
 * once more. O(elements of the dim x parts). */
Err copies_of(const Layout *l, const Mesh *m, const Shape *s, int rank, Arena *a,
              const CopyRun **out, int *n);

#endif
