/* timed.h -- a device whose kernels are another's, and which keeps account of them.
 *
 *     timed_open(cpu, &peaks);               one at a time: kernels get no context
 *     ... rank_step on &timed_device ...
 *     timed_row(KERNEL_gemm)->seconds
 */
#ifndef BENCH_SUPPORT_TIMED_H
#define BENCH_SUPPORT_TIMED_H

#include "support/work.h"

typedef struct {
    int64_t calls;
    double seconds, flops, bytes, floor_s;
} TimedRow;

extern const Device timed_device;

/* Local. From here on all counts begin again. */
void timed_open(const Device *inner, const Peaks *peaks);
const TimedRow *timed_row(KernelId id);

#endif
