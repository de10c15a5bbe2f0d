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
#include "schedule/text_form.h"

static const char sends[] = "ranks synchronize through the host";
static const char binds[] = "programs are bound to calls from step to step";

/* What prevents a capture, and the first place in the list where it does. */
typedef struct {
    const char *why; /* NULL: nothing does */
    const LinkedAction *action;
    const Instr *instr; /* NULL: the action itself */
} CaptureObstacle;

static CaptureObstacle run_obstacle(const LinkedAction *l)
{
    const Program *p = l->program;
    const int phase = l->action.phase;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        if (in->queue == QUEUE_COMM || in->op == OP_pack) return (CaptureObstacle){sends, l, in};
        if (in->op == OP_call) return (CaptureObstacle){binds, l, in};
    }
    return (CaptureObstacle){0};
}

static CaptureObstacle action_obstacle(const RankSettings *s, const LinkedAction *l, bool normed)
{
    const bool ends = l->action.kind == A_NORM || l->action.kind == A_UPDATE;
    for (int i = 0; i < l->n_steps; i++)
        if (l->step[i].kind == STEP_TRANSFER) return (CaptureObstacle){sends, l, NULL};
    if (l->action.kind == A_BIND) return (CaptureObstacle){binds, l, NULL};
    if (ends && !s->device->runtime->lists)
        return (CaptureObstacle){
            "the device has no optimizer lists, so the host computes the clip factor", l, NULL};
    if (l->action.kind == A_UPDATE && !normed)
        return (CaptureObstacle){
            "the list updates before its norm, so the host computes the clip factor", l, NULL};
    return l->program ? run_obstacle(l) : (CaptureObstacle){0};
}

/* The first obstacle in the list; sums of scalars over ranks, at the step's end, come last. */
static CaptureObstacle find_obstacle(const RankSettings *s)
{
    const LinkedProgram *lp = s->program;
    CaptureObstacle found = {0};
    bool normed = false;
    if (lp->model->logit_rows > 0)
        return (CaptureObstacle){.why = "each call of a session has other rows"};
    for (int i = 0; i < lp->n && !found.why; i++) {
        normed = normed || lp->list[i].action.kind == A_NORM;
        found = action_obstacle(s, &lp->list[i], normed);
    }
    if (!found.why && steps_sends(lp)) found.why = sends;
    return found;
}

static const char *obstacle_text(const RankSettings *s, const CaptureObstacle *o,
                                 char text[UNCAPTURED_BYTES])
{
    char action[ACTION_TEXT_BYTES];
    const LinkedProgram *lp = s->program;
    if (!o->action && o->why == sends)
        snprintf(text, UNCAPTURED_BYTES, "%s: sums of the loss and the norm at the step's end",
                 o->why);
    else if (!o->action)
        snprintf(text, UNCAPTURED_BYTES, "%s", o->why);
    else if (!o->instr)
        snprintf(text, UNCAPTURED_BYTES, "%s: %s", o->why,
                 action_text(&o->action->action, lp->slices, action));
    else
        snprintf(text, UNCAPTURED_BYTES, "%s: instruction %d, %s, of %s (%s)", o->why,
                 (int)(o->instr - o->action->program->instr), op_info(o->instr->op)->name,
                 action_text(&o->action->action, lp->slices, action),
                 lp->model->unit[o->action->action.unit].name);
    return text;
}

static const char *settings_reason(const RankSettings *s)
{
    if (!s->device->runtime) return "the device is the host";
    if (!s->device->runtime->graphs) return "the device captures no graphs";
    if (!s->capture) return "run.capture=off";
    if (s->trace && s->trace->cap > 0) return "a trace needs the time of each op";
    return s->jitter.max_s > 0 ? "the rank sleeps between ops" : NULL;
}

const char *rank_uncaptured(const RankSettings *s, char text[UNCAPTURED_BYTES])
{
    const char *reason = settings_reason(s);
    if (reason) return reason;
    const CaptureObstacle o = find_obstacle(s);
    return o.why ? obstacle_text(s, &o, text) : NULL;
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
    if (!r->runtime || !r->runtime->graphs || !s->capture || find_obstacle(s).why) return OK;
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
