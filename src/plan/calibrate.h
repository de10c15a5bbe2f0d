/* calibrate.h -- factors of a cluster's seconds, from steps that were measured.
 *
 *     planned   work 8.0 ms, transfers 2.0 ms       measured   13 ms
 *               work 9.0 ms, transfers 0.5 ms                  11 ms
 *     factors   work 1.1, transfers 2.0             13 = 1.1 x 8 + 2.0 x 2
 *
 * Least squares on log time, with a prior at 1: few steps that agree with the cluster's rates
 * change little. Waits for other stages count as work, since a bubble grows with it. */
#ifndef PLAN_CALIBRATE_H
#define PLAN_CALIBRATE_H

#include "plan/clock/coarse.h"

typedef struct {
    CoarseTime planned;
    double measured_s;
} MeasuredStep;

typedef struct {
    double work, transfers; /* seconds that are measured over those that are planned */
} ClusterFactors;

/* Local. n > 0; measured_s > 0. */
ClusterFactors calibrate_factors(const MeasuredStep *step, int n);
/* Local. The cluster whose work and transfers take so many times as long. */
Err cluster_scale(const Cluster *c, ClusterFactors f, Arena *arena, Cluster *out);

#endif
