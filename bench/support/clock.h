/* clock.h -- time in seconds. */
#ifndef BENCH_SUPPORT_CLOCK_H
#define BENCH_SUPPORT_CLOCK_H

#include <time.h>

static inline double clock_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

/* Of all threads of the process. */
static inline double process_s(void) { return clock_s(CLOCK_PROCESS_CPUTIME_ID); }

#endif
