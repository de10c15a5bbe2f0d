/* capture.c -- a repeated step as one graph, which the device launches.
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
 * Capture needs steps without host involvement; rank_uncaptured returns the reason, if any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"

static const char sends[] = "ranks synchronize through the host";
static const char binds[] = "programs are bound to calls from step to step";

static const char *run_reason(const LinkedAction *l)
{
    const Program *p = l->program;
    const int phase = l->action.phase;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        if (in->queue == QUEUE_COMM || in->op == OP_pack) return sends;
        if (in->op == OP_call) return binds;
    }
    return NULL;
}

/* The reason why the list needs the host within a step; NULL: it does not. */
static const char *program_reason(const RankSettings *s)
{
    const LinkedProgram *lp = s->program;
    const char *reason = steps_sends(lp) ? sends : NULL;
    bool normed = false;
    if (lp->model->logit_rows > 0) return "each call of a session has other rows";
    for (int i = 0; i < lp->n && !reason; i++) {
        const LinkedAction *l = &lp->list[i];
        const bool ends = l->action.kind == A_NORM || l->action.kind == A_UPDATE;
        normed = normed || l->action.kind == A_NORM;
        if (l->program) reason = run_reason(l);
        if (l->action.kind == A_BIND) reason = binds;
        if (ends && !s->device->runtime->lists)
            reason = "the device has no optimizer lists, so the host computes the clip factor";
        if (l->action.kind == A_UPDATE && !normed)
            reason = "the list updates before its norm, so the host computes the clip factor";
    }
    return reason;
}

static const char *settings_reason(const RankSettings *s)
{
    if (!s->device->runtime) return "the device is the host";
    if (!s->device->runtime->graphs) return "the device captures no graphs";
    if (!s->capture) return "run.capture=off";
    if (s->trace && s->trace->cap > 0) return "a trace needs the time of each op";
    return s->jitter.max_s > 0 ? "the rank sleeps between ops" : NULL;
}

const char *rank_uncaptured(const RankSettings *s)
{
    const char *reason = settings_reason(s);
    return reason ? reason : program_reason(s);
}

const char *rank_capture_refused(const Rank *r)
{
    return r->capture.refused ? r->capture.why : NULL;
}

/* Only lasting reasons count here: a trace or jitter may be switched on and off between steps. */
Err capture_open(Rank *r)
{
    const RankSettings *s = &r->settings;
    const int micros = s->program->micros;
    if (!r->runtime || !r->runtime->graphs || !s->capture || program_reason(s)) return OK;
    r->capture.live_rows = calloc((size_t)micros + 1, sizeof *r->capture.live_rows);
    if (!r->capture.live_rows) return err_fail(ERR_NOMEM, "no memory for %d micro-batches", micros);
    return OK;
}

static void drop_graph(Rank *r)
{
    if (r->capture.graph) r->runtime->graphs->graph_close(r->capture.graph);
    r->capture.graph = NULL;
}

void capture_close(Rank *r)
{
    drop_graph(r);
    free(r->capture.live_rows);
}

/* True if a graph of the previous step would also be right for this one. */
static bool is_repeated(const Rank *r)
{
    const RankCapture *c = &r->capture;
    const size_t bytes = (size_t)r->settings.program->micros * sizeof *c->live_rows;
    return c->ran_eagerly && memcmp(c->live_rows, r->live_rows, bytes) == 0 &&
           (!c->graph || r->runtime->graphs->graph_fits(c->graph));
}

/* Autotuning changes algorithms from call to call; a graph would keep those of its capture. */
static bool is_tuning(const Rank *r)
{
    return r->runtime->autotune && r->runtime->autotune->left(r->context) > 0;
}

bool capture_ready(Rank *r)
{
    RankCapture *c = &r->capture;
    if (!c->live_rows || c->refused || settings_reason(&r->settings)) return false;
    if (is_repeated(r) && !is_tuning(r)) return true;
    drop_graph(r);
    memcpy(c->live_rows, r->live_rows, (size_t)r->settings.program->micros * sizeof *c->live_rows);
    c->ran_eagerly = true;
    return false;
}

/* Nothing of the captured walk has run; the rank's state returns to the start of the step. */
static bool refuse(Rank *r)
{
    snprintf(r->capture.why, sizeof r->capture.why, "%s", err_text());
    r->capture.refused = true;
    r->step = (RankStep){0};
    tickets_clear(r);
    return false;
}

bool capture_begin(Rank *r)
{
    return r->runtime->graphs->capture_begin(r->queue) == OK || refuse(r);
}

bool capture_end(Rank *r, Err walked)
{
    RankCapture *c = &r->capture;
    if (walked != OK) {
        refuse(r); /* for the walk's reason, not for the error of the end that follows from it */
        (void)r->runtime->graphs->capture_end(r->queue, NULL);
        return false;
    }
    if (r->runtime->graphs->capture_end(r->queue, &c->graph) != OK) return refuse(r);
    c->n_captured++;
    c->decision = r->step.decision;
    return true;
}

Err capture_launch(Rank *r)
{
    r->step.decision = r->capture.decision;
    r->capture.n_launched++;
    return r->runtime->graphs->graph_run(r->queue, r->capture.graph);
}
