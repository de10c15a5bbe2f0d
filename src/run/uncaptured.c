/* uncaptured.c -- what keeps the steps of a rank from being captured as a graph: settings, and the
 * first action or instruction of the list that needs the host. */
#include <stdio.h>

#include "run/rank_parts.h"
#include "schedule/text_form.h"
#include "schedule/traffic.h"

static const char sends[] = "ranks synchronize through the host, as processes with NCCL would not";
static const char pairs[] =
    "a graph would hold the GPU while it waits for the other rank of a send";
static const char across[] = "a transfer is in flight at the norm";
static const char loops[] =
    "parallel.overflow=rounds: the host reads how many rounds the rows of experts take";
static const char binds[] = "programs are bound to calls from step to step";

/* What prevents a capture, and the first place in the list where it does. */
typedef struct {
    const char *why; /* NULL: nothing does */
    const LinkedAction *action;
    const Instr *instr; /* NULL: the action itself */
} CaptureObstacle;

static bool is_pair(CommKind k) { return k == COMM_SEND || k == COMM_RECV; }

/* Why the transfer cannot be captured; NULL: it can. */
static const char *transfer_obstacle(const RankSettings *s, CommKind kind)
{
    return !s->capture_transfers ? sends : is_pair(kind) ? pairs : NULL;
}

static CaptureObstacle run_obstacle(const RankSettings *s, const LinkedAction *l)
{
    const Program *p = l->program;
    const int phase = l->action.phase;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        const char *why = NULL;
        if (in->queue == QUEUE_COMM && in->op != OP_wait)
            why = transfer_obstacle(s, instr_transfer(p, in).kind);
        if (in->op == OP_pack && !s->capture_transfers) why = sends;
        if (in->op == OP_call) why = binds;
        if (op_loops(in->op)) why = loops;
        if (why) return (CaptureObstacle){why, l, in};
    }
    return (CaptureObstacle){0};
}

static const char *steps_obstacle(const RankSettings *s, const LinkedAction *l)
{
    for (int i = 0; i < l->n_steps; i++) {
        const char *why =
            l->step[i].kind == STEP_TRANSFER ? transfer_obstacle(s, l->step[i].t.kind) : NULL;
        if (why) return why;
    }
    return NULL;
}

static CaptureObstacle action_obstacle(const RankSettings *s, const LinkedAction *l, bool normed)
{
    const bool ends = l->action.kind == A_NORM || l->action.kind == A_UPDATE;
    const char *why = steps_obstacle(s, l);
    if (why) return (CaptureObstacle){why, l, NULL};
    if (l->action.kind == A_BIND) return (CaptureObstacle){binds, l, NULL};
    if (ends && !s->device->runtime->lists)
        return (CaptureObstacle){
            "the device has no optimizer lists, so the host computes the clip factor", l, NULL};
    if (l->action.kind == A_UPDATE && !normed)
        return (CaptureObstacle){
            "the list updates before its norm, so the host computes the clip factor", l, NULL};
    return l->program ? run_obstacle(s, l) : (CaptureObstacle){0};
}

int capture_norm(const LinkedProgram *lp)
{
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].action.kind == A_NORM) return i;
    return -1;
}

/* An action whose transfer is begun before the NORM and waited for behind it. */
static const LinkedAction *action_across(const LinkedProgram *lp, int norm)
{
    for (int i = 0; i < norm; i++)
        if (lp->list[i].begun < lp->list[i].n_steps && lp->list[i].end > norm) return &lp->list[i];
    return NULL;
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
    if (found.why || !steps_sends(lp)) return found;
    if (!s->capture_transfers) return (CaptureObstacle){.why = sends};
    const LinkedAction *open = action_across(lp, capture_norm(lp));
    return open ? (CaptureObstacle){across, open, NULL} : found;
}

bool capture_possible(const RankSettings *s) { return !find_obstacle(s).why; }

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

const char *capture_off(const RankSettings *s)
{
    if (!s->device->runtime) return "the device is the host";
    if (!s->device->runtime->graphs) return "the device captures no graphs";
    if (!s->capture) return "run.capture=off";
    if (s->trace && s->trace->cap > 0) return "a trace needs the time of each op";
    return s->jitter.max_s > 0 ? "the rank sleeps between ops" : NULL;
}

const char *rank_uncaptured(const RankSettings *s, char text[UNCAPTURED_BYTES])
{
    const char *reason = capture_off(s);
    if (reason) return reason;
    const CaptureObstacle o = find_obstacle(s);
    return o.why ? obstacle_text(s, &o, text) : NULL;
}
