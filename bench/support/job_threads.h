/* job_threads.h -- runs steps of a job on thread-ranks and measures them.
 *
 *     job_threads_run(&(JobThreads){.job = settings, .device = device, .threads = 1, .steps = 5},
 *                     seconds);
 *
 * With delay_Bps ranks have an emulated network (comm/delay.c), and with sleepy_device GEMMs take
 * the time of a slow device and no core: such a run needs neither cores nor a quiet machine. */
#ifndef BENCH_SUPPORT_JOB_THREADS_H
#define BENCH_SUPPORT_JOB_THREADS_H

#include "job/job.h"

typedef struct {
    JobSettings job;      /* a rank for each of its mesh; the rank is filled in */
    const Device *device; /* of host memory */
    int threads;          /* of each rank */
    int steps;            /* that are timed, after one that touches all memory */
    double delay_Bps;     /* of the emulated network; 0: none */
    bool delay_noticed;   /* as CommSettings.delay_noticed */
    bool real_time;       /* ranks mostly sleep: they run at once when they wake, with delays too */
    /* Called on each rank's thread after each step, with the events of that step; step 0 is
     * not timed. NULL: nothing, and no events are kept. */
    void (*stepped)(void *context, int step, const Job *job, const RankTrace *trace,
                    const Recorder *recorder);
    void *context;
} JobThreads;

enum { MAX_JOB_THREADS = 64 };

/* Local. Seconds [steps] of each timed step, on rank 0; ranks synchronize in every step. */
Err job_threads_run(const JobThreads *t, double *seconds);

/* Local. The middle value; sorts `x`. */
double median_of(double *x, int n);

/* Local. A device whose GEMMs compute as those of `inner` and return no earlier than their flops at
 * flops_per_s. One at a time: kernels have no context argument. */
const Device *sleepy_device(const Device *inner, double flops_per_s);

#endif
