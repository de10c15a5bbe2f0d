/* collectives.c -- all-reduce between ranks, in place, f32: median microseconds.
 *
 *     build/release/bench/collectives [RANKS ...]        threads; default 2 and 4
 *     mpirun -n 2 build/release/bench/collectives build/release/sheaf-mpi.so       processes
 *
 * All ranks repeat the call; rank 0 measures each call, for about half a second per size. Nothing
 * else should run: a rank that loses its core stops all others. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/backend.h"
#include "base/clock.h"
#include "comm/local/local.h"
#include "comm/mpi.h"

enum { MAX_CALLS = 20000, MAX_RANKS = 1024 };
static const size_t sizes[] = {(size_t)64 << 20, 4 << 20, 256 << 10, 4 << 10, 8};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

typedef struct {
    CommWorld *world;
    int rank, ranks;
    double us[N_SIZES];
    Err err;
} Bench;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int calls_of(size_t bytes)
{
    const double estimate_s = 2e-6 + (double)bytes / 4e9;
    const double calls = 0.5 / estimate_s;
    return calls < 15 ? 15 : calls > MAX_CALLS ? MAX_CALLS : (int)calls;
}

static Err time_size(Comm *c, const Bench *b, size_t bytes, double *calls_us, double *out)
{
    int32_t all[MAX_RANKS];
    for (int i = 0; i < b->ranks; i++) all[i] = i;
    const Ref whole = {b->rank, 0, 0, (int64_t)(bytes / sizeof(float)), F32};
    const Transfer t = {
        .kind = COMM_ALL_REDUCE, .group = {b->ranks, all}, .from = whole, .to = whole};
    const int calls = calls_of(bytes), warm = calls / 10 + 2;
    for (int i = -warm; i < calls; i++) {
        const double start_s = now_s();
        TRY(comm_do(c, &t));
        if (i >= 0) calls_us[i] = 1e6 * (now_s() - start_s);
    }
    qsort(calls_us, (size_t)calls, sizeof *calls_us, compare);
    *out = calls_us[calls / 2];
    return OK;
}

static Err run_rank(Bench *b)
{
    const CommSettings set = {.rank = b->rank, .ranks = b->ranks, .in_flight = 16, .records = 64};
    Arena arena;
    Comm *c;
    float *data;
    double *calls_us;
    TRY(arena_open(&arena, "bench", (size_t)1 << 30));
    TRY(comm_join(b->world, &arena, &set, &c));
    TRY(ARENA_NEW(&arena, sizes[0] / sizeof(float), &data));
    TRY(ARENA_NEW(&arena, MAX_CALLS, &calls_us));
    TRY(comm_register(c, 0, data, sizes[0]));
    for (int i = 0; i < N_SIZES; i++) TRY(time_size(c, b, sizes[i], calls_us, &b->us[i]));
    comm_close(c);
    arena_close(&arena);
    return OK;
}

/* Pins each rank to a core, while there are enough, as mpirun does. */
static void pin(int rank)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t)rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &cores);
    (void)pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

static void *rank_main(void *bench)
{
    Bench *b = bench;
    pin(b->rank);
    b->err = run_rank(b);
    if (b->err != OK) fprintf(stderr, "rank %d: %s\n", b->rank, err_text());
    return NULL;
}

static void head(const char *what)
{
    printf("all-reduce, f32, in place, ranks are %s; median us\n%-6s %11s %11s %11s %11s %11s\n",
           what, "ranks", "64 MiB", "4 MiB", "256 KiB", "4 KiB", "8 B");
}

static void show(const Bench *b)
{
    printf("%-6d", b->ranks);
    for (int i = 0; i < N_SIZES; i++) printf(" %11.2f", b->us[i]);
    printf("\n");
}

static int run(int ranks)
{
    CommWorld *world;
    Bench bench[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    if (local_start(ranks, &world) != OK) return fprintf(stderr, "%s\n", err_text()), 1;
    for (int i = 0; i < ranks; i++) {
        bench[i] = (Bench){.world = world, .rank = i, .ranks = ranks};
        if (pthread_create(&thread[i], NULL, rank_main, &bench[i]) != 0)
            return fprintf(stderr, "thread %d cannot start\n", i), 1;
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    comm_world_stop(world);
    show(&bench[0]);
    return bench[0].err != OK;
}

static int run_process(const char *path, const MpiLaunch *launch)
{
    Bench b = {0};
    if (!path) return fprintf(stderr, "give the path of sheaf-mpi.so\n"), 2;
    if (mpi_start(path, launch, &b.world) != OK) return fprintf(stderr, "%s\n", err_text()), 1;
    b.rank = b.world->rank;
    b.ranks = b.world->ranks;
    if (b.rank == 0) head("processes");
    b.err = run_rank(&b);
    if (b.err != OK) {
        fprintf(stderr, "rank %d: %s\n", b.rank, err_text());
        comm_world_abort(b.world, 1);
    }
    if (b.rank == 0) show(&b);
    comm_world_stop(b.world);
    return 0;
}

int main(int argc, char **argv)
{
    MpiLaunch launch;
    if (mpi_launched(getenv, &launch)) return run_process(argv[1], &launch);
    head("threads");
    if (argc == 1) return run(2) | run(4);
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        const int ranks = atoi(argv[i]);
        if (ranks < 1 || ranks > MAX_RANKS)
            return fprintf(stderr, "%s: ranks are 1 to %d\n", argv[i], MAX_RANKS), 2;
        failed |= run(ranks);
    }
    return failed;
}
