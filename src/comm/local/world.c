/* world.c -- the shared state of thread-ranks: ranks, channels, wake-ups, the first failure.
 *
 * Channels are found under a lock, once per rank and MatchChannel; after that a rank keeps a
 * pointer. A group that ends and is opened again is a new channel, and members arrive at it at
 * different times. A member attaches to the oldest channel of that name that it has not attached
 * to yet:
 *
 *     rank 0   attach A ... end A, attach B
 *     rank 1   attach A ............. end A, attach B
 *
 * A channel that all members have ended is reused for the next group of its size. */
#define _GNU_SOURCE
#include "comm/local/local_parts.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void rank_open(LocalRank *s)
{
    pthread_condattr_t attr;
    atomic_init(&s->waits, -1);
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->woken, &attr);
    pthread_condattr_destroy(&attr);
}

static void world_stop(CommWorld *base)
{
    LocalWorld *w = (LocalWorld *)base;
    for (int i = 0; i < w->base.ranks; i++) {
        MUST(atomic_load(&w->rank[i].state) != RANK_JOINED, "rank %d is still in its world", i);
        pthread_cond_destroy(&w->rank[i].woken);
        pthread_mutex_destroy(&w->rank[i].lock);
    }
    pthread_mutex_destroy(&w->lock);
    for (const LocalEvent *e = w->events; e; e = e->next) e->runtime->event_close(e->event);
    arena_close(&w->arena);
    free(w);
}

/* Threads share a process, so ending it ends all ranks. */
static Err world_renumber(CommWorld *base, int rank)
{
    return err_fail(ERR_CONFIG, "local: rank %d cannot become rank %d: all ranks are threads",
                    base->rank, rank);
}

static void world_abort(CommWorld *base, int status)
{
    (void)base;
    _Exit(status);
}

Err local_start(int ranks, CommWorld **out)
{
    if (ranks < 1)
        return err_fail(ERR_CONFIG, "local: a world of %d ranks; run.ranks is at least 1", ranks);
    LocalWorld *w = aligned_alloc(ARENA_ALIGN, align_up(sizeof *w));
    if (!w) return err_fail(ERR_NOMEM, "local: no memory for a world of %d ranks", ranks);
    memset(w, 0, sizeof *w);
    w->base = (CommWorld){.name = "local",
                          .ranks = ranks,
                          .here = ranks,
                          .join = world_join,
                          .renumber = world_renumber,
                          .stop = world_stop,
                          .abort = world_abort};
    w->oversubscribed = ranks > cores();
    Err err = arena_open(&w->arena, "local comm", ARENA_PLENTY);
    if (err == OK) err = ARENA_NEW(&w->arena, ranks, &w->rank);
    if (err != OK) {
        arena_close(&w->arena);
        free(w);
        return err;
    }
    pthread_mutex_init(&w->lock, NULL);
    for (int i = 0; i < ranks; i++) rank_open(&w->rank[i]);
    *out = &w->base;
    return OK;
}

static void rank_wake(LocalRank *s)
{
    if (!atomic_load(&s->asleep)) return;
    pthread_mutex_lock(&s->lock);
    s->events++;
    pthread_cond_signal(&s->woken);
    pthread_mutex_unlock(&s->lock);
}

void channel_wake(LocalWorld *w, const Channel *c)
{
    if (atomic_load(&w->sleepers) == 0) return;
    for (int i = 0; i < c->n; i++) rank_wake(&w->rank[c->member[i]]);
}

/* The text is complete before `failed` is set, so readers of `failed` need no lock. */
void world_fail(LocalWorld *w, int rank, const char *text)
{
    pthread_mutex_lock(&w->lock);
    if (!world_failed(w)) {
        w->failed_rank = rank;
        snprintf(w->failed_text, sizeof w->failed_text, "%s", text);
        atomic_store(&w->failed, 1);
    }
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->base.ranks; i++) rank_wake(&w->rank[i]);
}

Err world_error(LocalWorld *w)
{
    return err_fail(ERR_PEER, "rank %d: %s", w->failed_rank, w->failed_text);
}

/* Identity of a channel: group, purpose, and for a send or receive the two ranks. */
typedef struct {
    RankList group;
    int purpose, from, to;
} ChannelName;

static ChannelName name_of(const Transfer *t, int rank)
{
    ChannelName name = {t->group, t->purpose, -1, -1};
    if (t->kind == COMM_SEND) name.from = rank, name.to = t->to.rank;
    if (t->kind == COMM_RECV) name.from = t->from.rank, name.to = rank;
    return name;
}

static bool is_named(const Channel *c, const ChannelName *name)
{
    return c->from == name->from && c->to == name->to && c->purpose == name->purpose &&
           c->group_n == name->group.n &&
           memcmp(c->group, name->group.rank, sizeof *c->group * (size_t)c->group_n) == 0;
}

static Err channel_new(LocalWorld *w, int n, int group_n, Channel **out)
{
    for (Channel **at = &w->spare; *at; at = &(*at)->next)
        if ((*at)->n == n && (*at)->cap >= group_n) {
            *out = *at;
            *at = (*at)->next;
            return OK;
        }
    Channel *c;
    TRY(ARENA_NEW(&w->arena, 1, &c));
    TRY(ARENA_NEW(&w->arena, group_n, &c->group));
    TRY(ARENA_NEW(&w->arena, n, &c->member));
    TRY(ARENA_NEW(&w->arena, n, &c->membership));
    TRY(ARENA_NEW(&w->arena, n, &c->low));
    for (int i = 0; i < RING; i++) TRY(ARENA_NEW(&w->arena, n, &c->entry[i].post));
    for (int i = 0; i < RING * n; i++) {
        void *buffer; /* not cleared: pages that are never written take no memory */
        TRY(arena_push(&w->arena, MAX_EAGER_BYTES, &buffer));
        c->entry[i / n].post[i % n].eager = buffer;
    }
    c->n = n;
    c->cap = group_n;
    *out = c;
    return OK;
}

/* No member is attached, so plain stores are safe. */
static void channel_reset(Channel *c, const ChannelName *name)
{
    c->purpose = name->purpose;
    c->group_n = name->group.n;
    memcpy(c->group, name->group.rank, sizeof *c->group * (size_t)c->group_n);
    c->from = name->from;
    c->to = name->to;
    c->next = NULL;
    for (int i = 0; i < c->n; i++) {
        c->member[i] = name->from < 0 ? c->group[i] : i == 0 ? name->from : name->to;
        c->membership[i] = NOT_YET;
        atomic_store(&c->low[i].at, 0);
        for (int k = 0; k < RING; k++) {
            atomic_store(&c->entry[k].post[i].sequence, 0);
            atomic_store(&c->entry[k].post[i].issued, 0);
        }
    }
}

static Err attach(LocalWorld *w, const ChannelName *name, int place, Channel **out)
{
    Channel **at = &w->channels;
    while (*at && !(is_named(*at, name) && (*at)->membership[place] == NOT_YET)) at = &(*at)->next;
    if (!*at) {
        Channel *c;
        TRY(channel_new(w, name->from < 0 ? name->group.n : 2, name->group.n, &c));
        channel_reset(c, name);
        *at = c;
    }
    (*at)->membership[place] = ATTACHED;
    *out = *at;
    return OK;
}

Err channel_attach(LocalWorld *w, const Transfer *t, int rank, Channel **out, int *place)
{
    const ChannelName name = name_of(t, rank);
    *place = name.from < 0 ? group_index(t->group, rank) : t->kind == COMM_RECV;
    pthread_mutex_lock(&w->lock);
    const Err err = attach(w, &name, *place, out);
    pthread_mutex_unlock(&w->lock);
    return err;
}

void channel_end(LocalWorld *w, Channel *c, int place)
{
    bool over = true;
    pthread_mutex_lock(&w->lock);
    c->membership[place] = ENDED;
    for (int i = 0; i < c->n; i++) over = over && c->membership[i] == ENDED;
    if (over) {
        Channel **at = &w->channels;
        while (*at != c) at = &(*at)->next;
        *at = c->next;
        c->next = w->spare;
        w->spare = c;
    }
    pthread_mutex_unlock(&w->lock);
}
