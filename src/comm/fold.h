/* fold.h -- sums and maxima of the same elements of several ranks.
 *
 *     out[i] = ((x[0][i] + x[1][i]) + x[2][i]) + ...      a left fold: one order, one result
 *
 * bf16 is folded in f32 and rounded once, to nearest even. A maximum over a NaN is NaN. */
#ifndef COMM_FOLD_H
#define COMM_FOLD_H

#include "comm/comm.h"

/* Elements that one call takes at most: two blocks of the widest type stay in the first cache. */
enum { FOLD_ELEMENTS = 1024 };

typedef struct {
    DType dtype;
    Reduce reduce;
    int n;                /* >= 1 */
    const char *const *x; /* [n] */
} Fold;

/* Local. Of `count` elements from `start` on in each x; `out` overlaps none of them. */
void fold(const Fold *f, int64_t start, int64_t count, void *out);

#endif
