/* world.c -- starts the ranks of this process as threads, joins them, and picks the first error. */
#include "world/world.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm/local/local.h"
#include "world/scalars.h"

enum { TEXT_BYTES = 2048 };

typedef struct WorldRun WorldRun;

typedef struct {
    WorldRun *world;
    WorldRank rank;
    Arena arena;
    pthread_t thread;
    Err err;
    int order; /* of its failure among the failures of this process, from 1 */
    char text[TEXT_BYTES];
} RankThread;

/* Threads wait at a gate, so that no rank begins if one cannot be started. */
typedef enum { GATE_SHUT, GATE_OPEN, GATE_CALLED_OFF } Gate;

struct WorldRun {
    const WorldSettings *set;
    CommWorld *comm; /* that of the settings, or a local one that this file owns */
    int32_t *all;
    RankThread *runner;
    int n; /* ranks of this process */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Gate gate;
    int failures;
};

Err world_agree(WorldRank *r, Err mine)
{
    const Err err = comm_agree(r->comm, r->all, mine);
    r->agreed = err != OK && err != ERR_PEER;
    return err;
}

Err world_same(WorldRank *r, uint64_t number, const char *what, const char *rest)
{
    int64_t *all;
    Err err = OK;
    const size_t bytes = (size_t)r->ranks * sizeof *all;
    TRY(world_agree(r, ARENA_NEW(r->arena, r->ranks, &all)));
    TRY(comm_register(r->comm, ARENA_NUMBERS, all, bytes));
    memcpy(&all[r->rank], &number, sizeof number);
    TRY(world_gather(r, ARENA_NUMBERS, 1, I64));
    for (int i = 1; i < r->ranks && err == OK; i++)
        if (all[i] != all[0])
            err = err_fail(ERR_CONFIG, "rank %d has another %s than rank 0; %s", i, what, rest);
    return world_agree(r, err);
}

void world_leave(WorldRank *r, Err err)
{
    if (err != OK && !r->agreed) comm_abort(r->comm, err, err_text());
    comm_release_device(r->comm);
}

static Err join(RankThread *x)
{
    const WorldSettings *s = x->world->set;
    CommSettings set = {.rank = x->rank.rank,
                        .ranks = s->ranks,
                        .in_flight = s->in_flight,
                        .records = s->records,
                        .timeout_s = s->timeout_s};
    TRY(arena_open(&x->arena, "rank", ARENA_PLENTY));
    x->rank.arena = &x->arena;
    if (x->rank.status) {
        set.recorder = &x->rank.status->recorder;
        set.records = set.recorder->cap;
        flight_recorder_enter(x->rank.status);
    }
    if (s->flight_recorder) atomic_store(&s->flight_recorder->start, START_JOINS);
    TRY(comm_join(x->world->comm, &x->arena, &set, &x->rank.comm));
    if (s->flight_recorder) atomic_store(&s->flight_recorder->start, START_JOINED);
    return OK;
}

/* Adds the rank's position to the message of an error within a step: "(in step 2, embed, F of
 * micro-batch 0, instruction 2 wait)". */
static void add_position(RankThread *x, Err err)
{
    char where[WATCH_TEXT_BYTES];
    const size_t used = strlen(x->text);
    if (err == ERR_CONFIG || !x->rank.status || !atomic_load(&x->rank.status->watch.step)) return;
    snprintf(x->text + used, sizeof x->text - used, " (in %s)",
             watch_text(&x->rank.status->watch, where));
}

static void note_failure(RankThread *x, Err err)
{
    WorldRun *w = x->world;
    pthread_mutex_lock(&w->lock);
    x->err = err;
    x->order = ++w->failures;
    strncpy(x->text, err_text(), sizeof x->text - 1);
    add_position(x, err);
    FlightRecorder *f = w->set->flight_recorder;
    const bool named = strncmp(x->text, "rank ", 5) == 0;
    if (f && !f->why[0] && named) snprintf(f->why, sizeof f->why, "%.500s", x->text);
    if (f && !f->why[0]) snprintf(f->why, sizeof f->why, "rank %d: %.450s", x->rank.rank, x->text);
    if (f) atomic_store(&f->failed, 1);
    pthread_mutex_unlock(&w->lock);
}

/* The comm is closed before the arena that it is in, and after world_leave: from then on no other
 * rank accesses memory of this one. */
static void run_rank(RankThread *x)
{
    Err err = join(x);
    if (err == OK) err = x->world->set->body(&x->rank, x->world->set->work);
    if (x->rank.status) atomic_store(&x->rank.status->ended, 1);
    if (err != OK) note_failure(x, err);
    if (err != OK && x->rank.comm) world_leave(&x->rank, err);
    if (x->rank.comm) comm_close(x->rank.comm);
    if (x->arena.base) arena_close(&x->arena);
}

static void *rank_main(void *runner)
{
    RankThread *x = runner;
    WorldRun *w = x->world;
    pthread_mutex_lock(&w->lock);
    while (w->gate == GATE_SHUT) pthread_cond_wait(&w->changed, &w->lock);
    const bool go = w->gate == GATE_OPEN;
    pthread_mutex_unlock(&w->lock);
    if (go) run_rank(x);
    return NULL;
}

static void set_gate(WorldRun *w, Gate gate)
{
    pthread_mutex_lock(&w->lock);
    w->gate = gate;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* The calling thread is the first rank: a run of one rank starts no thread, and MPI is called from
 * the thread that initialized it. */
static Err run_threads(WorldRun *w)
{
    int started = 1, code = 0;
    for (; started < w->n && code == 0; started += code == 0)
        code = pthread_create(&w->runner[started].thread, NULL, rank_main, &w->runner[started]);
    set_gate(w, code == 0 ? GATE_OPEN : GATE_CALLED_OFF);
    if (code == 0) run_rank(&w->runner[0]);
    for (int i = 1; i < started; i++) pthread_join(w->runner[i].thread, NULL);
    if (code == 0) return OK;
    return err_fail(ERR_NOMEM,
                    "rank %d of %d cannot start its thread: %s; lower run.ranks or raise the limit "
                    "(ulimit -u)",
                    started, w->set->ranks, strerror(code));
}

/* The first rank that failed by itself; else the first whose wait ended with ERR_PEER. */
static const RankThread *first_failure(const WorldRun *w)
{
    const RankThread *found = NULL;
    for (int i = 0; i < w->n; i++) {
        const RankThread *x = &w->runner[i];
        if (x->err == OK) continue;
        const bool own = x->err != ERR_PEER, found_own = found && found->err != ERR_PEER;
        if (!found || own > found_own || (own == found_own && x->order < found->order)) found = x;
    }
    return found;
}

static Err outcome(const WorldRun *w)
{
    const RankThread *x = w->runner[0].rank.agreed ? &w->runner[0] : first_failure(w);
    if (!x || x->err == OK) return OK;
    if (w->set->ranks == 1 || x->rank.agreed ||
        x->err == ERR_PEER) /* the message names the rank already */
        return err_fail(x->err, "%s", x->text);
    return err_fail(x->err, "rank %d: %s", x->rank.rank, x->text);
}

static Err open_world(WorldRun *w, Arena *a)
{
    const WorldSettings *s = w->set;
    if (!w->comm) TRY(local_start(s->ranks, &w->comm));
    const int first = w->comm->rank;
    w->n = w->comm->here;
    TRY(ARENA_NEW(a, s->ranks, &w->all));
    TRY(ARENA_NEW(a, w->n, &w->runner));
    for (int i = 0; i < s->ranks; i++) w->all[i] = i;
    if (s->flight_recorder) s->flight_recorder->timeout_s = s->timeout_s;
    if (s->flight_recorder)
        TRY(flight_recorder_rank(s->flight_recorder, s->ranks, first, w->n, s->records));
    for (int i = 0; i < w->n; i++) {
        w->runner[i].world = w;
        w->runner[i].rank =
            (WorldRank){.rank = first + i,
                        .ranks = s->ranks,
                        .place = i,
                        .status = s->flight_recorder ? &s->flight_recorder->status[i] : NULL,
                        .all = {s->ranks, w->all}};
    }
    return OK;
}

Err world_run(const WorldSettings *s)
{
    WorldRun w = {.set = s, .comm = s->comm_world};
    Arena arena;
    TRY(arena_open(&arena, "world", ARENA_PLENTY));
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    Err err = open_world(&w, &arena);
    if (err == OK) err = run_threads(&w);
    if (err == OK) err = outcome(&w);
    if (!s->comm_world) comm_world_stop(w.comm); /* the launcher stops its own */
    pthread_cond_destroy(&w.changed);
    pthread_mutex_destroy(&w.lock);
    arena_close(&arena);
    return err;
}
