/* wait.c -- waiting for a transfer.
 *
 * A wait advances its own transfer and then all others that this rank has begun, since a peer may
 * wait for one of those. Between tries it spins, or yields its core if there are more ranks than
 * cores; after a millisecond without progress it sleeps.
 *
 * No wake-up is lost: a rank that changes shared state checks for sleepers afterwards, and a rank
 * that goes to sleep counts itself first and tries again. All these accesses are sequentially
 * consistent. */
#define _GNU_SOURCE
#include "comm/local/local_parts.h"

#include <errno.h>
#include <sched.h>
#include <time.h>
#include "base/clock.h"

enum { SPINS = 100 }; /* about 5 us; then a yield, in case a peer needs this core */
/* Yields for YIELD_S, then sleeps at most SLEEP_S, or SHORT_SLEEP_S for events without a wake-up. A
 * gap of STOPPED_S between two tries means that the process was stopped. */
static const double YIELD_S = 1e-3, SLEEP_S = 50e-3, SHORT_SLEEP_S = 1e-3, STOPPED_S = 1;

typedef struct {
    int64_t tries;
    double since_s, idle_since_s, seen_s;
} Idle;

/* A free ring entry and a launch of the device transport do not wake this rank: poll for them. */
static double sleep_limit_s(const Comm *c)
{
    const LocalComm *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++)
        if (l->flight[i].state == UNPOSTED ||
            (l->flight[i].state == MOVING && l->flight[i].by_transport))
            return SHORT_SLEEP_S;
    return SLEEP_S;
}

static void sleep_until_woken(Comm *c, bool *moved, Err *err)
{
    LocalComm *l = c->state;
    LocalRank *s = l->self;
    pthread_mutex_lock(&s->lock);
    const unsigned events = s->events;
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->asleep, 1);
    atomic_fetch_add(&l->world->sleepers, 1);
    *err = advance_all(c, moved);
    if (*err == OK && !*moved && !world_failed(l->world)) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(sleep_limit_s(c) * 1e9);
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_mutex_lock(&s->lock);
        while (s->events == events)
            if (pthread_cond_timedwait(&s->woken, &s->lock, &until) == ETIMEDOUT) break;
        pthread_mutex_unlock(&s->lock);
    }
    atomic_fetch_sub(&l->world->sleepers, 1);
    atomic_store(&s->asleep, 0);
}

/* After a try without progress: spins, yields or sleeps. Fails the world if the wait is too long or
 * if a member has left without posting. */
static Err backoff(Comm *c, int slot, Idle *idle)
{
    LocalComm *l = c->state;
    bool moved = false;
    Err err = OK;
    if (idle->tries++ < SPINS && !l->world->oversubscribed) {
        spin_pause();
        return OK;
    }
    const double at_s = now_s();
    if (idle->since_s == 0) idle->since_s = at_s;
    if (idle->seen_s > 0 &&
        at_s - idle->seen_s >
            STOPPED_S) /* stopped by Ctrl-Z, like all ranks: that time does not count */
        idle->since_s += at_s - idle->seen_s;
    idle->seen_s = at_s;
    if (idle->idle_since_s == 0) idle->idle_since_s = at_s;
    if (at_s - idle->idle_since_s < YIELD_S) {
        sched_yield();
        return OK;
    }
    const bool late = c->set.timeout_s > 0 && at_s - idle->since_s >= c->set.timeout_s;
    if (late || report_departed(c, slot) >= 0) return report_hang(c, slot, at_s - idle->since_s);
    sleep_until_woken(c, &moved, &err);
    if (moved) idle->tries = 0, idle->idle_since_s = 0;
    return err;
}

Err wait_over(Comm *c, int slot)
{
    LocalComm *l = c->state;
    const LocalFlight *f = &l->flight[slot];
    Idle idle = {0};
    for (;;) {
        bool moved = false;
        do {
            moved = false;
            TRY(advance(c, slot, &moved));
        } while (moved && f->state != FINISHED);
        if (f->state == FINISHED) return OK;
        if (world_failed(l->world)) return ERR_PEER;
        if (l->active > 1) TRY(advance_all(c, &moved));
        if (moved)
            idle.tries = 0, idle.idle_since_s = 0;
        else
            TRY(backoff(c, slot, &idle));
    }
}
