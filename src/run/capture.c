/* capture.c -- steps that are alike as one graph, which the device repeats.
 *
 *     live rows     9 9 7     9 9 7      9 9 7     9 9 2     9 9 2
 *     the step is   walked    noted      launched  walked    noted
 *                             launched                       launched
 *
 * A step is walked once op by op, so that scratch has grown and libraries have made their plans; the
 * next one with as many live rows is walked again, into a graph. A graph repeats addresses and numbers
 * as calls had them. Addresses are fixed by linking, and extents follow from the live rows; what else
 * is a step's own lies in device memory before it begins: inputs, rates, 1 / live tokens (desk_send).
 *
 * So the host must have no part between the step's start and its end. Who it has one for, rank_uncaptured
 * says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/rank_parts.h"

static const char sends[] = "ranks wait for each other by the host";
static const char binds[] = "programs are bound to calls from step to step";

static const char *run_misses(const Linked *l)
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

static const char *program_misses(const LinkedProgram *lp)
{
    const char *misses = steps_sends(lp) ? sends : NULL;
    bool normed = false;
    if (lp->model->asked > 0) return "each call of a session has other rows";
    for (int i = 0; i < lp->n && !misses; i++) {
        const Linked *l = &lp->list[i];
        normed = normed || l->action.kind == A_NORM;
        if (l->program) misses = run_misses(l);
        if (l->action.kind == A_BIND) misses = binds;
        if (l->action.kind == A_UPDATE && !normed)
            misses = "the list updates before its norm, so the host makes the factor on gradients";
    }
    return misses;
}

static const char *settings_miss(const RankSettings *s)
{
    if (!s->device->runtime) return "the device is the host";
    if (!s->capture) return "run.capture=off";
    if (s->trace && s->trace->cap > 0) return "a trace asks when each op is done";
    return s->naps.most_s > 0 ? "the rank sleeps between ops" : NULL;
}

const char *rank_uncaptured(const RankSettings *s)
{
    const char *misses = settings_miss(s);
    return misses ? misses : program_misses(s->program);
}

const char *rank_capture_refused(const Rank *r)
{
    return r->capture.refused ? r->capture.why : NULL;
}

Err capture_open(Rank *r)
{
    const int micros = r->settings.program->micros;
    if (!r->runtime || !r->settings.capture || program_misses(r->settings.program)) return OK;
    r->capture.rows = calloc((size_t)micros + 1, sizeof *r->capture.rows);
    if (!r->capture.rows) return err_fail(ERR_NOMEM, "no memory for %d micro-batches", micros);
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
    free(r->capture.rows);
}

/* Is the step like the one before it, as far as a graph would hold it? */
static bool is_again(const Rank *r)
{
    const RankCapture *c = &r->capture;
    const size_t bytes = (size_t)r->settings.program->micros * sizeof *c->rows;
    return c->walked && memcmp(c->rows, r->live_rows, bytes) == 0 &&
           (!c->graph || r->runtime->graphs->graph_fits(c->graph));
}

static Err walk_anew(Rank *r, RankWalk *walk)
{
    RankCapture *c = &r->capture;
    drop_graph(r);
    memcpy(c->rows, r->live_rows, (size_t)r->settings.program->micros * sizeof *c->rows);
    c->walked = true;
    return walk(r);
}

static Err launch(Rank *r)
{
    r->judged = r->clipped = r->capture.clipped;
    r->capture.launched++;
    return r->runtime->graphs->graph_run(r->queue, r->capture.graph);
}

/* Nothing of it has run, and what the walk told the rank is as before: it is walked after all. */
static Err give_up(Rank *r, RankWalk *walk)
{
    snprintf(r->capture.why, sizeof r->capture.why, "%s", err_text());
    r->capture.refused = true;
    r->n_begun = 0;
    r->tallied = r->judged = r->clipped = false;
    return walk(r);
}

/* Of a walk that fails, the reason is the walk's, and not what the end says to it. */
static Err note(Rank *r, RankWalk *walk)
{
    RankCapture *c = &r->capture;
    TRY(r->runtime->graphs->capture_begin(r->queue));
    const Err err = walk(r);
    if (err == OK) return r->runtime->graphs->capture_end(r->queue, &c->graph);
    snprintf(c->why, sizeof c->why, "%s", err_text());
    (void)r->runtime->graphs->capture_end(r->queue, NULL);
    return err_fail(err, "%s", c->why);
}

static Err note_and_launch(Rank *r, RankWalk *walk)
{
    if (note(r, walk) != OK) return give_up(r, walk);
    r->capture.captured++;
    r->capture.clipped = r->clipped;
    return launch(r);
}

Err capture_run(Rank *r, RankWalk *walk)
{
    if (!r->capture.rows || r->capture.refused || settings_miss(&r->settings)) return walk(r);
    if (!is_again(r) || r->runtime->autotune->left(r->context) > 0) return walk_anew(r, walk);
    return r->capture.graph ? launch(r) : note_and_launch(r, walk);
}
