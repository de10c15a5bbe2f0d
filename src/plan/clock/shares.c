/* shares.c -- flows of a rank that share a link.
 *
 *     gather     |=========================|        alone, beside one send, alone again
 *     send              |=====|
 *     share      gather 1 + |send| / |gather|, send 2
 *
 * A play without sharing has the times of all flows. The share of a flow is the mean number of
 * flows at its level on the busiest of its ranks while it is under way; a second play multiplies
 * its seconds by it. Two flows that are under way together each take twice as long, a short one
 * beside a long one delays it by its own length: the times of equal sharing, to first order. */
#include "plan/clock/parts.h"

#include <stdlib.h>

/* The begin or end of a flow on one rank. */
typedef struct {
    double at_s;
    int change;  /* +1, -1 */
    int channel; /* and number: of the flow */
    int number;
} FlowEvent;

typedef struct {
    const StepClock *c;
    int *level; /* [n_channels] */
    FlowEvent *event;
    int n;
} FlowSweep;

static int by_time(const void *pa, const void *pb)
{
    const FlowEvent *a = pa, *b = pb;
    if (a->at_s != b->at_s) return a->at_s < b->at_s ? -1 : 1;
    if (a->change != b->change) return a->change < b->change ? -1 : 1;
    if (a->channel != b->channel) return a->channel < b->channel ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* True if the rank of the tape is a member. */
static bool has_member(const ClockChannel *k, int rank)
{
    for (int i = 0; i < k->group.n; i++)
        if (k->group.rank[i] == rank) return true;
    return false;
}

/* The flows of one rank at one level, by time. */
static void collect(FlowSweep *s, int rank, int level)
{
    s->n = 0;
    for (int i = 0; i < s->c->n_channels; i++) {
        const ClockChannel *k = &s->c->channel[i];
        if (k->group.n < 2 || s->level[i] != level || !has_member(k, rank)) continue;
        for (int f = 0; f < k->n; f++) {
            if (k->flight[f].end_s <= k->flight[f].start_s) continue;
            s->event[s->n++] = (FlowEvent){k->flight[f].start_s, 1, i, f};
            s->event[s->n++] = (FlowEvent){k->flight[f].end_s, -1, i, f};
        }
    }
    qsort(s->event, (size_t)s->n, sizeof *s->event, by_time);
}

/* A flow's share is the growth of the integral over its seconds; the most of its ranks counts. */
static void sweep(FlowSweep *s)
{
    double busy = 0;
    int flows = 0;
    for (int i = 0; i < s->n; i++) {
        FlowEvent *e = &s->event[i];
        ClockChannel *k = &s->c->channel[e->channel];
        ClockFlight *f = &k->flight[e->number];
        if (i > 0) busy += flows * (e->at_s - e[-1].at_s);
        flows += e->change;
        if (e->change > 0) {
            f->busy_s = busy;
            continue;
        }
        const double share = (busy - f->busy_s) / (f->end_s - f->start_s);
        if (share > k->share[e->number]) k->share[e->number] = share;
    }
}

Err clock_find_shares(StepClock *c)
{
    FlowSweep s = {.c = c};
    int64_t flights = 0;
    TRY(ARENA_NEW(c->arena, c->n_channels, &s.level));
    for (int i = 0; i < c->n_channels; i++) {
        ClockChannel *k = &c->channel[i];
        s.level[i] = cost_group(&c->cluster->rates, k->group).level;
        TRY(ARENA_NEW(c->arena, k->n + 1, &k->share));
        for (int f = 0; f < k->n; f++) k->share[f] = 1;
        flights += k->n;
    }
    TRY(ARENA_NEW(c->arena, 2 * flights + 1, &s.event));
    for (int t = 0; t < c->n_tapes; t++)
        for (int level = 0; level < c->cluster->rates.n_levels; level++) {
            collect(&s, c->tape[t].rank, level);
            sweep(&s);
        }
    return OK;
}
