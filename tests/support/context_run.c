/* context_run.c -- ranks, messages and ticks. */
#include "support/context_run_parts.h"

static uint64_t random_bits(ContextRun *w)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random;
}

static int random_below(ContextRun *w, int n) { return (int)(random_bits(w) % (uint64_t)n); }

static bool is_partial(int payload) { return payload_is_partial((ContextPayload)payload); }

static RunChannel *channel(ContextRun *w, int from, int to)
{
    return &w->channel[from * w->p->shape.ranks + to];
}

static Err post(ContextRun *w, RunMessage **list, int *n, RunMessage m)
{
    if (!*list) TRY(ARENA_NEW(w->temp, w->most_steps, list));
    MUST(*n < w->most_steps, "more messages than steps");
    (*list)[(*n)++] = m;
    return OK;
}

/* Messages that met begin to travel; those that are due arrive. True if one is on its way. */
static bool advance_channel(ContextRun *w, int from, int to)
{
    RunChannel *c = channel(w, from, to);
    for (; c->n_met < c->n_sent && c->n_met < c->n_posted; c->n_met++) {
        const int lost = w->delays.most ? random_below(w, w->delays.most + 1) : 0;
        c->due = (c->due > w->now ? c->due : w->now) + lost;
        c->sent[c->n_met].due = c->due;
    }
    for (; c->n_done < c->n_met && c->sent[c->n_done].due <= w->now; c->n_done++) {
        const RunMessage *m = &c->sent[c->n_done];
        if (!is_partial(m->payload)) run_store(w, &w->rank[to], m);
    }
    return c->n_done < c->n_met;
}

/* Have the partial results come whose receives this rank posted? Adds them in that order. */
static Err add_arrivals(ContextRun *w, int rank, bool *waits)
{
    RunRank *r = &w->rank[rank];
    *waits = false;
    for (int i = 0; i < r->n_arrivals; i++)
        if (channel(w, r->arrival[i].from, rank)->n_done <= r->arrival[i].number) *waits = true;
    if (*waits) return OK;
    for (int i = 0; i < r->n_arrivals; i++)
        TRY(run_add(w, r, &channel(w, r->arrival[i].from, rank)->sent[r->arrival[i].number]));
    r->n_arrivals = 0;
    return OK;
}

/* The sends before the last visit, or all of them, must be done. */
static bool sends_are_done(ContextRun *w, int rank, bool all)
{
    for (int to = 0; to < w->p->shape.ranks; to++) {
        const RunChannel *c = channel(w, rank, to);
        if (c->n_done < (all ? c->n_sent : c->n_hidden)) return false;
    }
    return true;
}

static Err run_move(ContextRun *w, int rank, const ContextStep *s, bool *waits)
{
    RunRank *r = &w->rank[rank];
    const bool partial = is_partial(s->payload);
    *waits = true;
    if (!sends_are_done(w, rank, false)) return OK;
    if (s->to >= 0 && !partial && !run_has(w, r, s->payload, s->out)) return OK;
    *waits = false;
    if (s->to >= 0 && partial) TRY(add_arrivals(w, rank, waits));
    if (*waits) return OK;
    if (s->to >= 0) {
        RunChannel *c = channel(w, rank, s->to);
        RunMessage m = {.payload = s->payload, .block = s->out};
        TRY(run_take(w, r, &m));
        TRY(post(w, &c->sent, &c->n_sent, m));
    }
    if (s->from < 0) return OK;
    RunChannel *c = channel(w, s->from, rank);
    if (partial) {
        MUST(r->n_arrivals < w->most_steps, "more arrivals than steps");
        r->arrival[r->n_arrivals++] = (RunArrival){s->from, c->n_posted};
    }
    return post(w, &c->posted, &c->n_posted, (RunMessage){.payload = s->payload, .block = s->in});
}

static Err run_visit_step(ContextRun *w, int rank, const ContextStep *s, bool *waits)
{
    static const ContextPayload keys[] = {PAYLOAD_KV, PAYLOAD_K, PAYLOAD_V};
    RunRank *r = &w->rank[rank];
    *waits = true;
    if (!r->visited) {
        if (!run_has(w, r, PAYLOAD_Q, s->q) || !run_has(w, r, keys[s->pass], s->k)) return OK;
        TRY(run_visit(w, r, s));
        for (int to = 0; to < w->p->shape.ranks; to++)
            channel(w, rank, to)->n_hidden = channel(w, rank, to)->n_sent;
        r->visited = true;
    }
    TRY(add_arrivals(w, rank, waits));
    if (!*waits) r->visited = false;
    return OK;
}

/* One step of a rank, or the waits after its last one. */
static Err run_step(ContextRun *w, int rank, bool *moved)
{
    RunRank *r = &w->rank[rank];
    bool waits;
    if (r->at > w->p->n[rank]) return OK;
    if (r->at == w->p->n[rank]) {
        TRY(add_arrivals(w, rank, &waits));
        waits = waits || !sends_are_done(w, rank, true);
    } else if (w->p->list[rank][r->at].kind == CONTEXT_VISIT) {
        TRY(run_visit_step(w, rank, &w->p->list[rank][r->at], &waits));
    } else {
        TRY(run_move(w, rank, &w->p->list[rank][r->at], &waits));
    }
    r->at += !waits;
    *moved = *moved || !waits;
    return OK;
}

/* All ranks to their ends. A tick without a step and without a message on its way is a deadlock. */
static Err run_ticks(ContextRun *w)
{
    const int P = w->p->shape.ranks;
    for (int left = P; left > 0; w->now++) {
        bool moved = false, travels = false;
        left = 0;
        for (int i = 0; i < P * P; i++)
            if (advance_channel(w, i / P, i % P)) travels = true;
        for (int i = 0; i < P; i++) {
            if (w->delays.most && random_below(w, 3) == 0)
                travels = true; /* the rank computes */
            else
                TRY(run_step(w, i, &moved));
        }
        for (int i = 0; i < P; i++) left += w->rank[i].at <= w->p->n[i];
        if (left > 0 && !moved && !travels)
            return err_fail(ERR_CHECK, "attention plan %s: no rank can go on", w->p->row->name);
        if (w->now > 1000000) return err_fail(ERR_CHECK, "a plan takes a million ticks");
    }
    return OK;
}

static Err run_plan(ContextRun w, AttentionResult *r)
{
    const int P = w.p->shape.ranks;
    w.random = w.delays.seed * 2654435761u + 1;
    for (int i = 0; i < P; i++) w.most_steps = w.p->n[i] > w.most_steps ? w.p->n[i] : w.most_steps;
    TRY(ARENA_NEW(w.temp, P * P, &w.channel));
    TRY(ARENA_NEW(w.temp, P, &w.rank));
    for (int i = 0; i < P; i++) {
        TRY(ARENA_NEW(w.temp, w.most_steps + 1, &w.rank[i].arrival));
        TRY(run_open_rank(&w, i, r));
    }
    TRY(run_ticks(&w));
    run_collect(&w, r);
    return OK;
}

Err context_run(const Device *device, const ContextPlan plan[2], const AttentionCase *c,
                RandomDelays delays, Arena *temp, AttentionResult *r)
{
    const size_t mark = arena_mark(temp);
    double *(*kept)[2] = NULL;
    if (plan[0].row->passes) TRY(pass_open(c, plan[0].shape.ranks, temp, &kept));
    for (int back = 0; back < 2; back++) {
        delays.seed += (uint64_t)back;
        TRY(run_plan((ContextRun){.device = device,
                                  .p = &plan[back],
                                  .c = c,
                                  .delays = delays,
                                  .temp = temp,
                                  .kept = kept},
                     r));
    }
    arena_rewind(temp, mark);
    return OK;
}
