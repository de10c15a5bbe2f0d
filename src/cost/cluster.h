/* cluster.h -- a machine: its rates, and what they are compared with. plan/cluster/cluster.h reads
 * it from a file; the files in share/clusters are machines with published measurements. */
#ifndef COST_CLUSTER_H
#define COST_CLUSTER_H

#include "cost/cost.h"

/* Transfers by the axis that they follow. */
typedef enum { TRANSFER_TP, TRANSFER_CP, TRANSFER_DP, TRANSFER_PP } TransferAxis;

typedef struct {
    const char *name;
    CostRates rates;
    double memory_bytes; /* of one device, of those that have most */
    /* That memory is the host's, as a CPU's: it also holds offloaded frames and the copies that
     * checkpoints are written from. */
    bool host_memory;
    double peak_flops_per_s[N_DTYPES]; /* by the vendor, for mfu; 0: not given */
    double price_per_hour;             /* of one device, in US dollars; 0: not given */
    double idle_watt, busy_watt;       /* of one device; 0: not given */
    /* The host's time to launch a kernel or a transfer, which runs no earlier; the host launches
     * ahead of the device. 0: the device launches by itself. */
    double host_launch_s;
    double host_member_s; /* more for each further member of a collective */
    /* Factors on work beside a transfer, and on a transfer beside work; 0: 1. */
    double slow_work, slow_transfer;
    /* Transfers make progress while the rank computes. False: they do when a rank waits, as those
     * of threads and of MPI processes without progress threads do. */
    bool overlaps;
    /* Flows of a rank that are under way at the same time share its link of their level. False:
     * each has the whole link. */
    bool share_links;
    /* Exceptions, 1 << TransferAxis: transfers that the rank carries out where it waits, although
     * others overlap; and transfers whose waits stop the host too, so that it launches no kernel
     * ahead of them. */
    unsigned serial, stops_host;
} Cluster;

/* Local. The host's seconds to launch a transfer among so many ranks. */
static inline double cluster_launch_s(const Cluster *c, int members)
{
    return c->host_launch_s + c->host_member_s * (members - 1);
}

/* Local. True if some nodes have devices of their own. */
static inline bool cluster_has_devices(const Cluster *c)
{
    return c->rates.nodes && c->rates.nodes->n_devices > 0;
}

/* Local. The memory of a rank's device. */
static inline double cluster_memory_bytes(const Cluster *c, int rank)
{
    const double own = cost_device(&c->rates, rank).memory_bytes;
    return own > 0 ? own : c->memory_bytes;
}

#endif
