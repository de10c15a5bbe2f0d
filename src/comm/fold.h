/* fold.h -- ordered reductions: element-wise sums and maxima over several ranks.
 *
 *     out[i] = ((x[0][i] + x[1][i]) + x[2][i]) + ...      a left fold: one order, one result
 *
 * bf16 is folded in f32 and rounded once, to nearest even. A maximum over a NaN is NaN. */
#ifndef COMM_FOLD_H
#define COMM_FOLD_H

#include "comm/comm.h"

/* Elements per call: two blocks of the widest type fit into L1. */
enum { MAX_FOLD_ELEMENTS = 1024 };

typedef struct {
    DType dtype;
    Reduce reduce;
    int n;                /* >= 1 */
    const char *const *x; /* [n] */
} Fold;

/* Local. Folds elements start .. start + count - 1 of each x into out[0 .. count - 1]. `count` is
 * at most MAX_FOLD_ELEMENTS, and `out` overlaps no x. Thread-safe. */
void fold(const Fold *f, int64_t start, int64_t count, void *out);

#endif
