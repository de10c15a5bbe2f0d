/* timed.h -- a device whose kernels are another's, and which keeps account of them.
 *
 *     timed_open(cpu, &peaks, TIMED_KERNELS);    one at a time: kernels get no context
 *     ... rank_step on &timed_device ...
 *     timed_rows(&n)[0].seconds                  the row of most time comes first
 */
#ifndef BENCH_SUPPORT_TIMED_H
#define BENCH_SUPPORT_TIMED_H

#include "support/work.h"

typedef struct {
    char name[64]; /* "gemm", or "gemm 4096 x 768 x 3072 NT": c is m x n, sums are of k terms */
    int64_t calls;
    double seconds, flops, bytes, floor_s;
} TimedRow;

/* A row for each kernel, or for each shape of a product too. */
typedef enum { TIMED_KERNELS, TIMED_SHAPES } TimedBy;

extern const Device timed_device;

/* Local. From here on all counts begin again. */
void timed_open(const Device *inner, const Peaks *peaks, TimedBy by);
/* Local. Those that ran, sorted. */
const TimedRow *timed_rows(int *n);

#endif
