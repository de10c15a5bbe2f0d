/* measure.h -- measures the rates of this machine for a cluster file (plan/cluster.h).
 *
 *     gemm         512^3, in each type          attention   512 tokens, 8 heads of 64, causal
 *     pointwise    gelu, in the caches          memory      add, far beyond the caches
 *     launch       add of one element           links       all-reduce of 8 bytes and of 8 MiB
 *
 * All ranks of the world measure at the same time, since in a run they share cores and memory. Each
 * number is the median of its repetitions. */
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "cost/cluster.h"
#include "device/device.h"
#include "world/world.h"

enum { MAX_MEASURED = 16 };

/* One measured number. */
typedef struct {
    const char *what, *unit; /* "gemm bf16", "Gflop/s" */
    double value;            /* the median, in that unit */
    double spread;           /* of the repetitions: (third quartile - first) / median */
} Measured;

typedef struct {
    const Device *device; /* of host memory: f32 and bf16 */
    Team *team;           /* of this rank */
    double budget_s;      /* for each number */
    /* Called before each number, on rank 0; NULL: not called. */
    void (*progress)(void *context, const char *what);
    void *context;
} MeasureSettings;

typedef struct {
    CostRates rates;
    double peak_flops_per_s[N_DTYPES]; /* fastest GEMM */
    int n;
    Measured row[MAX_MEASURED];
} Measurement;

/* Collective over all ranks. Every rank gets its own numbers; use those of rank 0. f64 is measured
 * on the device `ref`, which runs it. */
Err measure_rates(const MeasureSettings *s, WorldRank *r, Measurement *out);

#endif
