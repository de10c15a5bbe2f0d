/* capture.c -- a repeated step as a graph, which the device launches.
 *
 *     live rows     9 9 7     9 9 7      9 9 7     9 9 2     9 9 2
 *     the step is   walked    captured   launched  walked    captured
 *                             launched                       launched
 *
 * The first step of its kind is walked op by op, so that scratch memory has grown and libraries
 * have made their plans. The next step with the same live rows is walked again, into a graph. A
 * graph repeats addresses and numbers as its calls had them. Addresses are fixed by linking and
 * extents follow from the live rows. Everything else that differs between steps is in device memory
 * before the step begins: inputs, rates, 1 / live tokens (mailbox_send).
 *
 * A rank that is alone needs no host within a step. Ranks that exchange sums do: the host folds
 * losses and squares in the order of ranks, at NORM, so their step is two graphs.
 *
 *     device   | graph: F B gather reduce | squares ..      .. factor | graph: update gather |
 *     host     | launch                   | fetch | sum | send      | launch               |
 *
 * Transfers by NCCL are part of the graphs. The ranks match them while they capture, and again for
 * no launch: so all ranks launch a step, or all walk it. They agree on that at its start, by one
 * number of each rank. A capture that fails on one of several ranks is an error of the run.
 *
 * Capture needs a list without other work of the host; rank_uncaptured returns the reason, if
 * any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"

const char *rank_capture_refused(const Rank *r)
{
    return r->capture.refused ? r->capture.why : NULL;
}

/* Only lasting reasons count here: a trace or jitter may be switched on and off between steps. */
Err capture_open(Rank *r)
{
    const RankSettings *s = &r->settings;
    RankCapture *c = &r->capture;
    const LinkedProgram *lp = s->program;
    const int ranks = lp->mesh->world;
    if (!r->runtime || !r->runtime->graphs || !s->capture) return OK;
    const bool may = capture_possible(s);
    c->transfers = steps_sends(lp) && s->capture_transfers;
    c->norm = c->transfers ? capture_norm(lp) : -1;
    c->live_rows = may ? calloc((size_t)lp->micros + 1, sizeof *c->live_rows) : NULL;
    c->all = calloc((size_t)ranks, sizeof *c->all);
    c->ready = calloc((size_t)ranks, sizeof *c->ready);
    if ((may && !c->live_rows) || !c->all || !c->ready)
        return err_fail(ERR_NOMEM, "no memory for a capture of %d micro-batches", lp->micros);
    for (int i = 0; i < ranks; i++) c->all[i] = i;
    return OK;
}

static void drop_graphs(void *rank)
{
    Rank *r = rank;
    for (int i = 0; i < CAPTURE_PARTS; i++) {
        if (r->capture.graph[i]) r->runtime->graphs->graph_close(r->capture.graph[i]);
        r->capture.graph[i] = NULL;
    }
}

void capture_close(Rank *r)
{
    RankCapture *c = &r->capture;
    if (c->transfers && c->graph[0]) comm_graphs(r->settings.comm, NULL, r);
    drop_graphs(r);
    free(c->live_rows);
    free(c->all);
    free(c->ready);
}

static int parts_of(const RankCapture *c) { return c->norm >= 0 ? 2 : 1; }

static bool graphs_fit(const Rank *r)
{
    bool fit = true;
    for (int i = 0; i < CAPTURE_PARTS; i++)
        fit = fit && (!r->capture.graph[i] || r->runtime->graphs->graph_fits(r->capture.graph[i]));
    return fit;
}

/* True if a graph of the previous step would also be right for this one. */
static bool is_repeated(const Rank *r)
{
    const RankCapture *c = &r->capture;
    const size_t bytes = (size_t)r->settings.program->micros * sizeof *c->live_rows;
    return c->ran_eagerly && memcmp(c->live_rows, r->live_rows, bytes) == 0 && graphs_fit(r);
}

/* Autotuning changes algorithms from call to call; a graph would keep those of its capture. */
static bool is_tuning(const Rank *r)
{
    return r->runtime->autotune && r->runtime->autotune->left(r->context) > 0;
}

/* What a rank would do in this step: the least of all ranks is done. */
enum { WALKS, CAPTURES, LAUNCHES };

static int wish_of(const Rank *r)
{
    const RankCapture *c = &r->capture;
    if (!is_repeated(r) || is_tuning(r)) return WALKS;
    return c->graph[parts_of(c) - 1] ? LAUNCHES : CAPTURES;
}

/* Collective over all ranks. Replaces *wish by the least wish of all. */
static Err agree(Rank *r, int *wish)
{
    RankCapture *c = &r->capture;
    const RankSettings *s = &r->settings;
    const int n = s->program->mesh->world, me = comm_rank(s->comm);
    const Ref own = {me, ARENA_GRAPHS, sizeof *c->ready * (size_t)me, 1, I32};
    const Transfer t = {.kind = COMM_ALL_GATHER,
                        .group = {n, c->all},
                        .from = own,
                        .to = {me, ARENA_GRAPHS, 0, n, I32},
                        .instr = -1,
                        .scalar = true};
    TRY(comm_register(s->comm, ARENA_GRAPHS, c->ready, sizeof *c->ready * (size_t)n));
    c->ready[me] = *wish;
    TRY(comm_do(s->comm, &t));
    for (int i = 0; i < n; i++)
        if (c->ready[i] < *wish) *wish = c->ready[i];
    return OK;
}

Err capture_settle(Rank *r)
{
    RankCapture *c = &r->capture;
    int wish = c->live_rows ? CAPTURES : WALKS;
    if (!c->transfers) return OK;
    TRY(agree(r, &wish));
    if (wish == CAPTURES) return OK;
    free(c->live_rows);
    c->live_rows = NULL;
    return OK;
}

Err capture_ready(Rank *r, bool *out)
{
    RankCapture *c = &r->capture;
    *out = false;
    if (!c->live_rows) return OK;
    const bool off = c->refused || capture_off(&r->settings), repeats = off || wish_of(r);
    int wish = off ? WALKS : wish_of(r);
    if (c->transfers) TRY(agree(r, &wish));
    *out = wish != WALKS;
    if (wish == LAUNCHES || (repeats && wish == WALKS)) return OK;
    drop_graphs(r);
    memcpy(c->live_rows, r->live_rows, (size_t)r->settings.program->micros * sizeof *c->live_rows);
    c->ran_eagerly = true;
    return OK;
}

/* Nothing of the captured walk has run; the rank's state returns to what it was before. */
static void refuse(Rank *r, const RankStep *before)
{
    snprintf(r->capture.why, sizeof r->capture.why, "%s", err_text());
    r->capture.refused = true;
    r->step = *before;
    tickets_clear(r);
    drop_graphs(r);
}

/* Walks positions into a graph. An error leaves none. */
static Err record(Rank *r, int part, int first, int end)
{
    RankCapture *c = &r->capture;
    Comm *comm = c->transfers ? r->settings.comm : NULL;
    TRY(r->runtime->graphs->capture_begin(r->queue));
    if (comm) c->before[part] = comm_totals(comm), comm_capture(comm, true);
    const Err walked = rank_walk(r, first, end);
    if (comm) c->after[part] = comm_totals(comm), comm_capture(comm, false);
    if (walked == OK) return r->runtime->graphs->capture_end(r->queue, &c->graph[part]);
    char why[512]; /* of the walk, not of the end that fails because of it */
    snprintf(why, sizeof why, "%s", err_text());
    (void)r->runtime->graphs->capture_end(r->queue, NULL);
    return err_fail(walked, "%s", why);
}

Err capture_part(Rank *r, int part, int first, int end, bool *captured)
{
    RankCapture *c = &r->capture;
    const RankStep before = r->step;
    const Err err = record(r, part, first, end);
    *captured = err == OK;
    if (err != OK && c->transfers) {
        char why[512];
        snprintf(why, sizeof why, "%s", err_text());
        return err_fail(err, "%s; in the capture of a step as a graph: run.capture=off avoids it",
                        why);
    }
    if (err != OK) {
        refuse(r, &before);
        return OK;
    }
    if (c->transfers) comm_graphs(r->settings.comm, drop_graphs, r);
    if (part == parts_of(c) - 1) c->n_captured++;
    c->decision = r->step.decision;
    return OK;
}

Err capture_launch(Rank *r, int part, bool again)
{
    RankCapture *c = &r->capture;
    if (c->norm < 0) r->step.decision = c->decision;
    if (c->transfers) comm_launched(r->settings.comm);
    if (c->transfers && again) comm_repeat(r->settings.comm, &c->before[part], &c->after[part]);
    if (part == parts_of(c) - 1) c->n_launched++;
    return r->runtime->graphs->graph_run(r->queue, c->graph[part]);
}
