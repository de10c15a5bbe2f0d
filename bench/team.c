/* team.c -- cost of running an empty function on a team of threads, in tiles.
 *
 *     build/release/bench/team [threads]          default: 2
 *
 *     at once    runs back to back: the workers spin and find work at once
 *     rested     a run after 2 ms of quiet: the workers sleep
 *
 * Each tile writes its own cache line, so that nothing is optimized away. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/team.h"
#include "support/clock.h"

enum { TILES = 64, LINE = 8 };

static void tile_run(void *work, int64_t tile) { ((int64_t *)work)[tile * LINE]++; }

static int smaller(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median time of a run in nanoseconds. */
static double run_ns(Team *team, int64_t tiles, int rest_us)
{
    enum { BATCH = 100, MOST = 301 };
    static int64_t work[TILES * LINE];
    double took[MOST];
    const int n = rest_us ? 101 : MOST, batch = rest_us ? 1 : BATCH;
    for (int i = 0; i < n; i++) {
        if (rest_us) nanosleep(&(struct timespec){.tv_nsec = rest_us * 1000}, NULL);
        const double start = now_s();
        for (int k = 0; k < batch; k++) team_run(team, tiles, tile_run, work);
        took[i] = (now_s() - start) / batch;
    }
    qsort(took, (size_t)n, sizeof *took, smaller);
    return 1e9 * took[n / 2];
}

static int measure(int threads, const Cores *cores)
{
    Team *team;
    if ((cores ? team_open_on(&team, threads, cores, 1, 0) : team_open(&team, threads, NULL)) !=
        OK) {
        fprintf(stderr, "bench/team: %s\n", err_text());
        return 1;
    }
    printf("%7d %7s %12.0f %12.0f %12.0f\n", threads, cores ? "yes" : "no",
           run_ns(team, threads, 0), run_ns(team, TILES, 0), run_ns(team, threads, 2000));
    team_close(team);
    return 0;
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 2;
    Cores cores;
    cores_find(&cores);
    printf("%7s %7s %12s %12s %12s\n", "threads", "pinned", "at once, ns", "64 tiles, ns",
           "rested, ns");
    if (measure(1, NULL) || measure(threads, NULL)) return 1;
    return measure(threads, &cores);
}
