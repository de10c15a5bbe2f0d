/* cluster.h -- a machine: its rates, and what they are compared with. plan/cluster.h reads it from
 * a file; the files in share/clusters are machines with published measurements. */
#ifndef COST_CLUSTER_H
#define COST_CLUSTER_H

#include "cost/cost.h"

typedef struct {
    const char *name;
    CostRates rates;
    double memory_bytes;               /* of one device */
    double peak_flops_per_s[N_DTYPES]; /* by the vendor, for mfu; 0: not given */
    /* Transfers make progress while the rank computes. False: they do when a rank waits, as those
     * of threads and of MPI processes without progress threads do. */
    bool overlaps;
} Cluster;

#endif
