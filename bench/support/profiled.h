/* profiled.h -- the rates of this machine, as `sheaf profile --quick` measures them. */
#ifndef BENCH_SUPPORT_PROFILED_H
#define BENCH_SUPPORT_PROFILED_H

#include "cost/cluster.h"
#include "device/device.h"

typedef struct {
    const Device *device;
    int ranks, threads; /* threads of each rank, pinned */
} Profiled;

/* Local. Measures all ranks at the same time. *spread: the widest of its numbers. The rates are
 * valid until the next call. */
Err profiled_cluster(const Profiled *p, Cluster *out, double *spread);

#endif
