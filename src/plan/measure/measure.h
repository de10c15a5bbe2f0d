/* measure.h -- measures the rates of this machine for a cluster file (plan/cluster/cluster.h).
 *
 *     gemm          512^3 in each type; a grid of m x n x k, the shapes that widths of presets and
 *                   their parts along tp give, as forward, input and weight gradient, with
 *                   weights that come from memory, as in a step
 *     attention     8 heads of 64, causal, forward and backward, 64 to 1024 tokens
 *     norm, gelu    in the caches              memory   add, from the caches to far beyond them
 *     launch        add of one element
 *     collectives   by kind, number of members and bytes, along every axis that a mesh of these
 *                   ranks can have: contiguous and strided groups, all of them at the same time
 *     pairs         every pair of ranks, in rounds of disjoint pairs: the whole matrix
 *     overlap       how GEMMs and a transfer slow each other down
 *
 * All ranks of the world measure at the same time, since in a run they share cores and memory. Each
 * number is the median of its repetitions. A device with memory of its own has its kernels measured
 * at the shapes and at the clock of its steps (card.h). */
#ifndef PLAN_MEASURE_MEASURE_H
#define PLAN_MEASURE_MEASURE_H

#include "cost/cluster.h"
#include "device/device.h"
#include "world/transport.h"

enum { MAX_MEASURED = 32, MAX_GRID_POINTS = 216, MAX_MEASURED_TABLES = 32 };
enum { MAX_MEASURED_NODES = 22 }; /* a file has at most 255 links between nodes */
enum { MAX_MEASURED_PAIRS = MAX_CLUSTER_PAIRS * (MAX_CLUSTER_PAIRS - 1) / 2 };

/* One measured number. */
typedef struct {
    const char *what, *unit; /* "gemm bf16", "Gflop/s" */
    double value;            /* the median, in that unit */
    double spread;           /* of the repetitions: (third quartile - first) / median */
} Measured;

/* Sizes of tables of kernels: up to 4096 in five steps; up to 1024 in three; small ones, for
 * tests. */
typedef enum { GRID_FULL, GRID_QUICK, GRID_SMALL, N_GRIDS } MeasureGrid;

typedef struct {
    const Device *device; /* f32 and bf16 */
    Team *team;           /* of this rank */
    double budget_s;      /* for each number */
    MeasureGrid grid;
    int node_ranks; /* consecutive ranks of a host; 0: all */
    /* Of memory that the device has of its own, between ranks; NULL: threads of one process. */
    const TransportSettings *transport;
    /* Called before each number, on rank 0; NULL: not called. */
    void (*progress)(void *context, const char *what);
    void *context;
} MeasureSettings;

typedef struct {
    CostRates rates;                   /* without tables: measurement_rates adds them */
    double peak_flops_per_s[N_DTYPES]; /* fastest GEMM */
    CostGrid gemm[N_DTYPES];           /* n_m 0: none */
    double gemm_rate[N_DTYPES][MAX_GRID_POINTS];
    CostCurve attention[N_DTYPES], memory;
    CostAttention keyed[N_DTYPES]; /* n 0: none */
    CostTable table[MAX_MEASURED_TABLES];
    int n_tables;
    CostPairs pairs; /* n 0: one rank, or more than MAX_CLUSTER_PAIRS */
    float pair_latency_s[MAX_MEASURED_PAIRS], pair_Bps[MAX_MEASURED_PAIRS];
    CostNodes nodes; /* n_links 0: the links between nodes are alike, or their nodes too many */
    CostLink node_link[MAX_MEASURED_NODES * (MAX_MEASURED_NODES - 1) / 2];
    uint8_t node_between[MAX_MEASURED_NODES * MAX_MEASURED_NODES];
    char transport[TRANSPORT_BYTES]; /* of device memory, for people; "": nothing to say */
    int slow_pair[2];                /* the pair of ranks with the slowest link */
    double slow_pair_Bps;            /* 0: there is one rank */
    /* As in Cluster, at most 100; 0: not measured. */
    double slow_work, slow_transfer;
    int n;
    Measured row[MAX_MEASURED];
} Measurement;

/* Local. The rates with their tables, which point into `m`. */
CostRates measurement_rates(Measurement *m);
/* Collective over all ranks. Every rank gets its own numbers; use those of rank 0. f64 is measured
 * on the device `ref`, which runs it. */
Err measure_rates(const MeasureSettings *s, WorldRank *r, Measurement *out);

#endif
