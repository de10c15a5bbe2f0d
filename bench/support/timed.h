/* timed.h -- a device that runs the kernels of another one and times them.
 *
 *     timed_open(cpu, &peaks, TIMED_KERNELS, now_s);    one at a time: kernels have no context
 *     ... rank_step on &timed_device ...                argument
 *     timed_rows(&n)[0].seconds                         the row with the most time comes first */
#ifndef BENCH_SUPPORT_TIMED_H
#define BENCH_SUPPORT_TIMED_H

#include "support/work.h"

typedef struct {
    char name[64]; /* "gemm", or "gemm 4096 x 768 x 3072 NT": m x k x n, op(A) op(B) */
    int64_t calls;
    double seconds, flops, bytes, floor_s;
} TimedRow;

/* A row for each kernel, or also for each shape of a GEMM. */
typedef enum { TIMED_KERNELS, TIMED_SHAPES } TimedBy;

extern const Device timed_device;

/* Local. Sets the device and the clock, and resets all counts. */
void timed_open(const Device *inner, const Peaks *peaks, TimedBy by, double (*seconds)(void));
/* Local. The rows of kernels that ran, sorted by time. */
const TimedRow *timed_rows(int *n);

#endif
