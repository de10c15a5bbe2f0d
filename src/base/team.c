/* team.c -- a thread team: a gate, shares of tiles, spinning and sleeping.
 *
 *     gate       6 closed      7 open, inside 0 1 2 2 1      8 closed, inside 1 0
 *     caller     fill in work, open ... take tiles ......... close, wait until none is inside
 *     worker     wait for an open gate, go inside, take tiles, go out, wait for another number
 *
 * The caller waits only for workers that are inside the gate. A worker that sleeps, or whose core
 * runs something else, delays nothing: the other threads take its tiles.
 *
 * Each thread has a share of consecutive tiles, and takes from the next thread's share when its own
 * is empty. A share is one number that holds the region and the count of tiles taken in it, so it
 * need not be reset for a new region.
 *
 * All waiting is one function: spin for a short time, since the next kernel mostly follows at once,
 * then sleep. A thread that changes the gate checks for sleepers afterwards; a thread that goes to
 * sleep counts itself as a sleeper first and checks the gate again. All these accesses are
 * sequentially consistent, so one of the two threads sees the other, and no wake-up is lost. */
#define _GNU_SOURCE
#include "base/team_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"

enum { MAX_THREADS = 1024 };

/* The gate: the number of workers inside in the low bits, above it the number of the region, which
 * is odd while the gate is open. */
#define INSIDE UINT64_C(0xffff)
#define REGION UINT64_C(0x10000)
/* A share: the count of tiles taken in the low bits, above it the number of the region. */
#define TAKEN_BITS 24
#define TAKEN ((UINT64_C(1) << TAKEN_BITS) - 1)

static _Thread_local int thread_rank = -1;

static bool is_open(uint64_t gate) { return (gate / REGION & 1) != 0; }

/* For a worker: a region is open, and it is not the last one that the worker saw. */
static bool has_work(uint64_t gate, uint64_t last)
{
    return is_open(gate) && gate / REGION != last;
}

/* For the caller: no worker is inside. */
static bool is_empty(uint64_t gate, uint64_t unused)
{
    (void)unused;
    return (gate & INSIDE) == 0;
}

static bool spin(Team *t, bool (*done)(uint64_t gate, uint64_t mark), uint64_t mark)
{
    enum {
        LOOKS = 64
    }; /* polls per read of the clock; the duration of a pause varies between processors */
    const int64_t end = now_ns() + atomic_load_explicit(&t->spin_ns, memory_order_relaxed);
    do {
        for (int i = 0; i < LOOKS; i++) {
            if (done(atomic_load(&t->gate), mark)) return true;
            spin_pause();
        }
    } while (now_ns() < end);
    return false;
}

static void wait_until(Team *t, bool (*done)(uint64_t gate, uint64_t mark), uint64_t mark)
{
    if (done(atomic_load(&t->gate), mark)) return;
    if (atomic_load_explicit(&t->spin_ns, memory_order_relaxed) > 0 && spin(t, done, mark)) return;
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while (!done(atomic_load(&t->gate), mark)) pthread_cond_wait(&t->changed, &t->lock);
    atomic_fetch_sub(&t->sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void wake(Team *t)
{
    if (atomic_load(&t->sleepers) == 0) return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void poll(const Team *t)
{
    if (t->poll) t->poll(t->polled);
}

/* Thread `me` runs all tiles that are left in a thread's share of this region. */
static void take_share(Team *t, int me, int thread, uint64_t region)
{
    atomic_ullong *share = &t->worker[thread].share;
    const int64_t first = t->n_tiles * thread / t->threads;
    const uint64_t n = (uint64_t)(t->n_tiles * (thread + 1) / t->threads - first);
    unsigned long long seen = atomic_load_explicit(share, memory_order_relaxed);
    for (;;) {
        const uint64_t taken = seen >> TAKEN_BITS == region ? seen & TAKEN : 0;
        if (taken >= n) return;
        if (!atomic_compare_exchange_weak_explicit(share, &seen, region << TAKEN_BITS | (taken + 1),
                                                   memory_order_relaxed, memory_order_relaxed))
            continue;
        t->run(t->work, first + (int64_t)taken);
        if (me == 0) poll(t);
        seen = atomic_load_explicit(share, memory_order_relaxed);
    }
}

static void take_tiles(Team *t, int thread, uint64_t region)
{
    for (int i = thread; i < t->threads; i++) take_share(t, thread, i, region);
    for (int i = 0; i < thread; i++) take_share(t, thread, i, region);
}

static void *worker_main(void *self)
{
    Team *t = ((Worker *)self)->team;
    const int me = (int)((Worker *)self - t->worker);
    uint64_t last = 0;
    thread_rank = t->rank;
    atomic_store(&t->worker[me].tid, (int)syscall(SYS_gettid));
    for (bool stop = false; !stop;) {
        wait_until(t, has_work, last);
        const uint64_t gate = atomic_fetch_add(&t->gate, 1);
        if (is_open(gate)) { /* else the region ended before this worker entered */
            last = gate / REGION;
            stop = t->stop;
            if (!stop) take_tiles(t, me, last);
        }
        const uint64_t left = atomic_fetch_sub(&t->gate, 1) - 1;
        if (!is_open(left) && is_empty(left, 0)) wake(t);
    }
    return NULL;
}

static uint64_t open_gate(Team *t)
{
    const uint64_t gate = atomic_fetch_add(&t->gate, REGION) + REGION;
    wake(t);
    return gate / REGION;
}

static int processors(void)
{
    cpu_set_t may;
    return sched_getaffinity(0, sizeof may, &may) == 0 ? CPU_COUNT(&may) : 1;
}

static void stop_workers(Team *t, int started)
{
    t->stop = true;
    (void)open_gate(t);
    for (int i = 1; i < started; i++) pthread_join(t->worker[i].thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static Err start_workers(Team *t)
{
    for (int i = 1; i < t->threads; i++) {
        t->worker[i].team = t;
        const int code = pthread_create(&t->worker[i].thread, NULL, worker_main, &t->worker[i]);
        if (code == 0) continue;
        const int threads = t->threads;
        stop_workers(t, i);
        return err_fail(
            ERR_NOMEM,
            "thread %d of %d of a team cannot start: %s; lower run.threads or raise the "
            "limit (ulimit -u)",
            i, threads, strerror(code));
    }
    return OK;
}

Err team_open(Team **team, int threads, const TeamPinning *pinning)
{
    if (threads < 1 || threads > MAX_THREADS)
        return err_fail(ERR_CONFIG, "a team of %d threads: run.threads is between 1 and %d",
                        threads, MAX_THREADS);
    const size_t bytes = align_up(sizeof(Team) + (size_t)threads * sizeof(Worker));
    Team *t = aligned_alloc(ARENA_ALIGN, bytes);
    if (!t) return err_fail(ERR_NOMEM, "no memory for a team of %d threads", threads);
    memset(t, 0, bytes);
    t->threads = threads;
    t->rank = thread_rank;
    t->owner = pthread_self();
    const bool oversubscribed = pinning ? pinning->oversubscribed : processors() < threads;
    atomic_store(&t->spin_ns, oversubscribed ? 0 : SPIN_NS);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    TRY(start_workers(t));
    if (pinning && pinning->cpu) /* after the workers started: they would inherit the core */
        team_pin(t, pinning->cpu);
    *team = t;
    return OK;
}

Err team_open_on(Team **team, int threads, const Cores *cores, int ranks, int rank)
{
    int cpu[MAX_THREADS];
    const bool pinned = cores_of_rank(cores, ranks, rank, threads, cpu);
    const bool oversubscribed = (int64_t)threads * ranks > cores->quota;
    return team_open(team, threads,
                     &(TeamPinning){pinned && !oversubscribed ? cpu : NULL, oversubscribed});
}

void team_close(Team *team)
{
    if (!team) return;
    if (team->pinned && pthread_equal(team->owner, pthread_self()))
        (void)pthread_setaffinity_np(team->owner, sizeof team->owner_cores, &team->owner_cores);
    stop_workers(team, team->threads);
}

void team_set_rank(int rank) { thread_rank = rank; }

int team_rank(void) { return thread_rank; }

int team_threads(const Team *team) { return team ? team->threads : 1; }

void team_run(Team *team, int64_t n_tiles, void (*run)(void *work, int64_t tile), void *work)
{
    if (team && team->shares) team_check_cores(team);
    if (team_threads(team) == 1 || n_tiles <= 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++) {
            run(work, tile);
            if (team) poll(team);
        }
        return;
    }
    MUST(!is_open(atomic_load(&team->gate)), "team_run within a tile of the same team");
    MUST(n_tiles / team->threads < (int64_t)TAKEN, "%lld tiles", (long long)n_tiles);
    team->run = run;
    team->work = work;
    team->n_tiles = n_tiles;
    take_tiles(team, 0, open_gate(team));
    atomic_fetch_add(&team->gate, REGION); /* closed: a worker that enters now leaves at once */
    wait_until(team, is_empty, 0);
}

void team_set_poll(Team *team, void (*function)(void *polled), void *polled)
{
    if (!team) return;
    team->poll = function;
    team->polled = polled;
}
