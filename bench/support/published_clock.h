/* published_clock.h -- compiled plans of published rows, kept to be played on many clusters.
 *
 * Rows whose plans differ only in the number of micro-batches share their clocks: a rank with many
 * of them is played with two smaller numbers, and each further one takes the same time. */
#ifndef BENCH_SUPPORT_PUBLISHED_CLOCK_H
#define BENCH_SUPPORT_PUBLISHED_CLOCK_H

#include "plan/clock/clock.h"
#include "support/published.h"

typedef struct PlanClock PlanClock;

typedef struct {
    Arena *arena, *temp; /* clocks; the compiler */
    PlanClock *first;
    int n;
} PlanCache;

/* The clocks of a row, and the weights of their times: time = sum of weight x step. */
typedef struct {
    int n;
    PlanClock *clock[2];
    double weight[2];
} RowClocks;

/* Local. Compiles the plan unless the cache has it. */
Err plan_clocks(PlanCache *cache, const PublishedRow *r, const Cluster *c, RowClocks *out);
/* Local. Seconds of the row's step. `stamp` names the constants: a clock that was played with the
 * same stamp is not played again. */
Err plan_seconds(const RowClocks *r, const Cluster *c, int64_t stamp, StepTime *out);

#endif
