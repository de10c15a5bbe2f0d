/* work.h -- what a call of a kernel has to do at least: its flops, and the bytes it reads and writes. */
#ifndef BENCH_SUPPORT_WORK_H
#define BENCH_SUPPORT_WORK_H

#include "device/device.h"
#include "support/peaks.h"

typedef struct {
    double flops; /* of products; other arithmetic hides behind bytes */
    double bytes; /* each operand once, those that are added to twice */
    DType type;   /* of the products */
} Work;

/* Local. */
Work work_of(KernelId id, const Call *call);
/* Local. Seconds, were one of the two the machine's whole time. What fits into the last cache may be
 * there already. */
double work_floor_s(const Work *w, const Peaks *p);

#endif
