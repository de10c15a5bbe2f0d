/* jitter.c -- a rank that stops to sleep where others might overtake it; for tests.
 *
 *     rank 0    F0.0 ........ F0.1 .. B0.0          of four actions and instructions one is slept
 *     rank 1    .... F0.0 B0.0 ............ F0.1    before, for as long as a seeded number says
 *
 * What a step computes may not depend on who is late. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include "base/philox.h"
#include "run/rank_parts.h"

void jitter_sleep(Rank *r)
{
    const RankJitter *n = &r->settings.jitter;
    if (n->max_s <= 0) return;
    const Random random = random_named(n->seed + (uint64_t)r->settings.program->rank, "jitter");
    const uint64_t bits = random_bits(&random, r->n_delays++);
    if (bits % 4 != 0) return;
    const double sleep_s = n->max_s * (double)((bits >> 8) % 1000) / 1000;
    nanosleep(
        &(struct timespec){(time_t)sleep_s, (long)((sleep_s - (double)(time_t)sleep_s) * 1e9)},
        NULL);
}
