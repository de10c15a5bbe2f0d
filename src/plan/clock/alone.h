/* alone.h -- the RUNs of one rank of a job, without the other ranks.
 *
 * A RUN is played by the clock as on the whole machine, but all others begin their transfers no
 * later than this rank: its seconds there are at least these. */
#ifndef PLAN_CLOCK_ALONE_H
#define PLAN_CLOCK_ALONE_H

#include "cost/cluster.h"
#include "job/job.h"

/* Local. Seconds of each phase of each class of units, for the first micro-batch; run_s: [classes].
 * `temp` is rewound. */
Err clock_runs_alone(const Job *job, const Cluster *cluster, Arena *temp,
                     double (*run_s)[N_PHASES]);

#endif
