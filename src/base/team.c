/* team.c -- a few threads that wait for work together.
 *
 *     caller   fill in the work, generation++ ... take tiles ........ wait until busy is 0
 *     worker   wait for a new generation ........ take tiles ... busy-- ... wait ...
 *
 * All waiting is one function: spin a little, since the next kernel mostly comes at once, then
 * sleep. Whoever changes what others wait for looks for sleepers afterwards; whoever falls asleep
 * counts itself a sleeper first and looks again. Both orders are sequentially consistent, so one of
 * the two sees the other and no wake-up is lost. */
#define _GNU_SOURCE
#include "base/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/arena.h"

enum { MAX_THREADS = 1024, SPINS = 4000 }; /* some 50 us: about what it costs to sleep and wake */

static _Thread_local int works_for = -1;

struct Team {
    int threads; /* the caller counted */
    int works_for;
    int spins;
    bool pinned, stop;
    pthread_t owner;
    cpu_set_t owner_cores; /* to give back at close */

    void (*run)(void *work, int64_t tile);
    void *work;
    int64_t n_tiles;

    _Alignas(ARENA_ALIGN) atomic_llong next; /* the next tile that nobody has taken */
    _Alignas(ARENA_ALIGN) atomic_uint generation;
    _Alignas(ARENA_ALIGN) atomic_uint busy; /* workers that still look at this generation */
    _Alignas(ARENA_ALIGN) atomic_int sleepers;
    atomic_bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t worker[]; /* worker 0 is the caller: its place stays empty */
};

static void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns once *value is no longer (until_equal: is) `mark`. */
static void wait_for(Team *t, atomic_uint *value, unsigned mark, bool until_equal)
{
    for (int i = 0; i < t->spins; i++) {
        if ((atomic_load(value) == mark) == until_equal) return;
        spin_pause();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleepers, 1);
    while ((atomic_load(value) == mark) != until_equal) pthread_cond_wait(&t->changed, &t->lock);
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

static void take_tiles(Team *t)
{
    const int64_t n_tiles = t->n_tiles;
    for (;;) {
        const int64_t tile = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        if (tile >= n_tiles) return;
        t->run(t->work, tile);
    }
}

static void *worker_main(void *team)
{
    Team *t = team;
    works_for = t->works_for;
    for (unsigned generation = 0;; generation++) {
        wait_for(t, &t->generation, generation, false);
        if (t->stop) return NULL;
        take_tiles(t);
        if (atomic_fetch_sub(&t->busy, 1) == 1) wake(t);
    }
}

static void next_generation(Team *t)
{
    atomic_store(&t->busy, (unsigned)t->threads - 1);
    atomic_fetch_add(&t->generation, 1);
    wake(t);
}

int team_cores(void)
{
    cpu_set_t may;
    if (sched_getaffinity(0, sizeof may, &may) != 0) return 1;
    return CPU_COUNT(&may);
}

/* To the n-th core that the process may use. One that is not there is no fault: the same run works,
 * unpinned, on a smaller machine. */
static void pin(pthread_t thread, const cpu_set_t *may, int n)
{
    cpu_set_t one;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, may) || n-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        (void)pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

static void pin_all(Team *t, int first_core)
{
    t->pinned = pthread_getaffinity_np(t->owner, sizeof t->owner_cores, &t->owner_cores) == 0;
    if (!t->pinned) return;
    for (int i = 1; i < t->threads; i++) pin(t->worker[i], &t->owner_cores, first_core + i);
    pin(t->owner, &t->owner_cores, first_core);
}

static void stop_workers(Team *t, int started)
{
    t->stop = true;
    next_generation(t);
    for (int i = 1; i < started; i++) pthread_join(t->worker[i], NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

Err team_open(Team **team, int threads, int first_core)
{
    if (threads < 1 || threads > MAX_THREADS)
        return err_fail(ERR_CONFIG, "a team of %d threads: run.threads is between 1 and %d",
                        threads, MAX_THREADS);
    const size_t bytes = align_up(sizeof(Team) + (size_t)threads * sizeof(pthread_t));
    Team *t = aligned_alloc(ARENA_ALIGN, bytes);
    if (!t) return err_fail(ERR_NOMEM, "no memory for a team of %d threads", threads);
    memset(t, 0, bytes);
    t->threads = threads;
    t->works_for = works_for;
    t->owner = pthread_self();
    /* With fewer cores than threads, who spins keeps the others from their work. */
    t->spins = team_cores() >= threads ? SPINS : 0;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    for (int i = 1; i < threads; i++) {
        const int code = pthread_create(&t->worker[i], NULL, worker_main, t);
        if (code == 0) continue;
        stop_workers(t, i);
        return err_fail(
            ERR_NOMEM,
            "thread %d of %d of a team cannot start: %s; lower run.threads or raise the "
            "limit (ulimit -u)",
            i, threads, strerror(code));
    }
    if (first_core >= 0) pin_all(t, first_core); /* last: workers would inherit the caller's core */
    *team = t;
    return OK;
}

void team_close(Team *team)
{
    if (!team) return;
    if (team->pinned && pthread_equal(team->owner, pthread_self()))
        (void)pthread_setaffinity_np(team->owner, sizeof team->owner_cores, &team->owner_cores);
    stop_workers(team, team->threads);
}

void team_work_for(int who) { works_for = who; }

int team_works_for(void) { return works_for; }

int team_threads(const Team *team) { return team ? team->threads : 1; }

void team_run(Team *team, int64_t n_tiles, void (*run)(void *work, int64_t tile), void *work)
{
    if (team_threads(team) == 1 || n_tiles <= 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++) run(work, tile);
        return;
    }
    MUST(!atomic_exchange(&team->running, true), "a team was asked to run within its own run");
    team->run = run;
    team->work = work;
    team->n_tiles = n_tiles;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    next_generation(team);
    take_tiles(team);
    wait_for(team, &team->busy, 0, true);
    atomic_store(&team->running, false);
}
