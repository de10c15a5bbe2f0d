/* step_plan.h -- the planned time of a step, beside the measured one.
 *
 *     step 1..4     from a cluster file, if one is known            412 ms (plan 405)
 *     step 5..      from the kernels that this run measured itself  398 ms (plan 401)
 *
 * Rank 0 plays the step once before the run (plan/clock/clock.h). In steps 2 to 4 it records the
 * seconds of its kernels; then they replace those of the cluster file, or give the first plan if
 * there is none. Nothing is recorded later. A device with memory of its own keeps the plan of the
 * cluster file: its kernels are not timed one by one outside of a trace. */
#ifndef TRAIN_STEP_PLAN_H
#define TRAIN_STEP_PLAN_H

#include "job/job.h"
#include "plan/clock/clock.h"

enum { MEASURED_STEPS = 3, MEASURED_STEP = 1 + MEASURED_STEPS }; /* the first touches memory */

typedef struct {
    bool open;
    double predicted_s; /* of a step with full micro-batches; 0: not known yet */
    RankTrace trace;    /* of steps 2 to MEASURED_STEP; cap 0: not recorded */
    int64_t steps;      /* since the start of this process */
    Arena arena, temp;
    JobSettings job;
    Mesh mesh;
    Cluster cluster;
    ClockInput in;
    StepClock *clock;
} StepPlan;

/* Local, on rank 0. Compiles and plays the job of lp. cluster NULL: unknown. `records`: the seconds
 * of kernels will be recorded in p->trace. */
Err step_plan_open(StepPlan *p, const Job *job, const Cluster *cluster, bool records);
/* Local. After each step; c is the rank's comm. Returns true if the plan has changed: *before_s has
 * the plan before. */
Err step_plan_update(StepPlan *p, const Job *job, const Comm *c, bool *changed, double *before_s);
void step_plan_close(StepPlan *p);

#endif
