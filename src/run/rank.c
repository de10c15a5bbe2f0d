/* rank.c -- opens a rank and walks its list. */
#include "run/rank.h"

#include <math.h>
#include <stdlib.h>
#include "run/rank_parts.h"

Err rank_open(Rank *r, const RankSettings *settings)
{
    const LinkedProgram *lp = settings->program;
    *r = (Rank){.settings = *settings};
    TRY(device_check(settings->device));
    TRY(bind_check(lp));
    TRY(steps_check(r));
    TRY(prepack_check(r));
    if (settings->state_of && settings->comm) TRY(comm_quiet(settings->comm));
    TRY(memory_open(r));
    r->live_rows = calloc((size_t)lp->micros, sizeof *r->live_rows);
    if (!r->live_rows) return err_fail(ERR_NOMEM, "no memory for %d micro-batches", lp->micros);
    for (int m = 0; m < lp->micros; m++) r->live_rows[m] = lp->model->rows;
    r->slot[SLOT_ONE] = 1.0;
    TRY(tickets_open(r));
    TRY(timestamps_open(r));
    TRY(capture_open(r));
    return lists_open(r);
}

void rank_close(Rank *r)
{
    memory_drain(r);
    capture_close(r);
    lists_close(r);
    timestamps_close(r);
    tickets_close(r);
    memory_close(r);
    free(r->live_rows);
    *r = (Rank){0};
}

void rank_set_logit_rows(Rank *r, int64_t rows)
{
    MUST(rows >= 0 && rows <= r->settings.program->model->logit_rows, "%lld rows", (long long)rows);
    r->slot[SLOT_LOGIT_ROWS] = (double)rows;
}

/* The output of the head. No other unit reads it, so its memory is free until the next call. */
static Tensor find_logits(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = lp->n - 1; i >= 0; i--) {
        const LinkedAction *l = &lp->list[i];
        if (l->action.kind != A_RUN || l->action.unit != lp->model->n_units - 1) continue;
        for (int t = 0; t < l->program->n_tensors; t++) {
            const ProgTensor *x = &l->program->tensor[t];
            if (x->at[SPLIT].region != REGION_Y || x->view_of != t) continue;
            return (Tensor){r->base[ARENA_WORK] + l->base[REGION_Y] + x->at[SPLIT].offset,
                            x->dtype,
                            2,
                            {(int64_t)r->slot[SLOT_LOGIT_ROWS], x->dim[1].cap},
                            {x->stride[0], x->stride[1]}};
        }
    }
    return (Tensor){0};
}

/* Logits in device memory are copied to a host buffer for the largest number of rows of a call. */
Err rank_logits(Rank *r, Tensor *out)
{
    *out = find_logits(r);
    if (rank_on_host(r) || !out->data) return OK;
    const size_t row = (size_t)out->stride[0] * dtype_bytes(out->dtype);
    if (!r->logits) r->logits = malloc((size_t)r->settings.program->model->logit_rows * row + 1);
    if (!r->logits)
        return err_fail(ERR_NOMEM, "no memory for logits of %lld rows",
                        (long long)r->settings.program->model->logit_rows);
    TRY(rank_read(r, out->data, (size_t)out->n[0] * row, r->logits));
    out->data = r->logits;
    return OK;
}

/* Resets the results of the last step and sets the runtime scalars of this one. */
static void start_step(Rank *r, const StepSettings *step)
{
    const OptimSettings *o = &r->settings.optim;
    const double update = (double)(step->update ? step->update : step->step);
    r->step = (RankStep){0};
    r->slot[SLOT_LR] = step->lr;
    r->slot[SLOT_BIAS1] = 1.0 - pow(o->beta1, update);
    r->slot[SLOT_BIAS2] = 1.0 - pow(o->beta2, update);
    optimize_scalars(r);
}

static Err run_action(Rank *r, int at)
{
    const LinkedAction *l = &r->settings.program->list[at];
    switch (l->action.kind) {
    case A_RUN:
        return execute_run(r, l);
    case A_GATHER:
    case A_REDUCE:
    case A_SEND:
    case A_RECV:
    case A_EVICT:
    case A_FETCH:
        return steps_begin(r, at);
    case A_DROP: /* linking has given its memory to later regions */
        return OK;
    case A_NORM:
        return optimize_norm(r);
    case A_UPDATE:
        return optimize_update(r, l->action.unit);
    case A_QUANTIZE:
        return codes_make(r, at);
    case A_BIND:
        r->bound[l->action.unit] = r->pending[l->action.unit];
        return OK;
    default:
        MUST(false, "action %d of kind %d was linked", at, l->action.kind);
        return OK;
    }
}

/* The end of the list is one more position, which only waits for transfers. */
static Err wait_position(Rank *r, int at)
{
    const LinkedAction *l = &r->settings.program->list[at];
    for (int w = 0; w < l->n_waits; w++) TRY(steps_end(r, l->wait[w]));
    return poison_freed(r, l);
}

static Err walk_action(Rank *r, int at)
{
    const LinkedAction *l = &r->settings.program->list[at];
    const double begin_s = watch_begin(r, l, -1);
    TRY(run_action(r, at));
    TRY(watch_end(r, l, -1, begin_s));
    return poll_now(r);
}

Err rank_walk(Rank *r, int first, int end)
{
    for (int i = first; i <= end; i++) {
        jitter_sleep(r);
        TRY(wait_position(r, i));
        if (i < end) TRY(walk_action(r, i));
    }
    return OK;
}

/* Launches positions of the list as a graph; captures that first if there is none. */
static Err run_part(Rank *r, int part, int first, int end)
{
    bool captured = true;
    const bool again = r->capture.graph[part];
    if (!again) TRY(capture_part(r, part, first, end, &captured));
    if (captured) watch_graph(r);
    return captured ? capture_launch(r, part, again) : rank_walk(r, first, end);
}

/* The NORM of a step of several ranks is on the host, between two graphs. */
static Err run_graphs(Rank *r)
{
    const int n = r->settings.program->n, norm = r->capture.norm;
    if (norm < 0) return run_part(r, 0, 0, n);
    TRY(run_part(r, 0, 0, norm));
    TRY(walk_action(r, norm));
    return run_part(r, 1, norm + 1, n);
}

/* A repeated step is a launch of its graphs. At the first repetition the device captures a walk of
 * the list as those; if it refuses, and in all other steps, the list is walked. */
Err rank_step(Rank *r, const StepSettings *step, StepResult *out)
{
    bool graphs;
    TRY(groups_prepare(r));
    start_step(r, step);
    TRY(capture_ready(r, &graphs));
    TRY(mailbox_send(r));
    TRY(watch_step(r, step->step));
    TRY(graphs ? run_graphs(r) : rank_walk(r, 0, r->settings.program->n));
    TRY(optimize_totals(r));
    TRY(stats_sum(r));
    TRY(watch_step(r, 0));
    const RankStep *s = &r->step;
    *out = (StepResult){.loss_sum = s->loss_sum,
                        .grad_norm = s->norm,
                        .live_tokens = s->live_tokens,
                        .skipped = s->skipped};
    out->loss = s->live_tokens ? s->loss_sum / (double)s->live_tokens : 0.0;
    return OK;
}
