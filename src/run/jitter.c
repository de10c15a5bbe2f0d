/* jitter.c -- random sleeps before actions and instructions, so that ranks overtake each other; for
 * tests.
 *
 *     rank 0    F0.0 ........ F0.1 .. B0.0          one in four actions and instructions is delayed
 *     rank 1    .... F0.0 B0.0 ............ F0.1    by a seeded random time
 *
 * The results of a step must not depend on which rank is late. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include "base/philox.h"
#include "run/rank_parts.h"

void jitter_sleep(Rank *r)
{
    const RankJitter *j = &r->settings.jitter;
    if (j->max_s <= 0) return;
    const Random random = random_named(j->seed + (uint64_t)r->settings.program->rank, "jitter");
    const uint64_t bits = random_bits(&random, r->n_delays++);
    if (bits % 4 != 0) return;
    const double sleep_s = j->max_s * (double)((bits >> 8) % 1000) / 1000;
    nanosleep(
        &(struct timespec){(time_t)sleep_s, (long)((sleep_s - (double)(time_t)sleep_s) * 1e9)},
        NULL);
}
