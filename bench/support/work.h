/* work.h -- the least work of a kernel call: its flops, and the bytes it reads and writes. */
#ifndef BENCH_SUPPORT_WORK_H
#define BENCH_SUPPORT_WORK_H

#include "device/device.h"
#include "support/peaks.h"

typedef struct {
    double flops; /* of GEMMs; other arithmetic is hidden behind memory */
    double bytes; /* each operand once, accumulators twice */
    DType type;   /* of the GEMMs */
} Work;

/* Local. Whether the kernel is a GEMM over the rows of all experts. */
bool work_is_grouped(KernelId id);
/* Local. */
Work work_of(KernelId id, const Call *call);
/* Local. Seconds if only flops or only bytes took time, whichever is longer. Operands that fit into
 * L3 may be there already. */
double work_floor_s(const Work *w, const Peaks *p);

#endif
