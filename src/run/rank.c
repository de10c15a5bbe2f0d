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
    case A_BIND:
        r->bound[l->action.unit] = r->pending[l->action.unit];
        return OK;
    default:
        MUST(false, "action %d of kind %d was linked", at, l->action.kind);
        return OK;
    }
}

/* The end of the list is one more position, which only waits for transfers. */
static Err walk(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i <= lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        jitter_sleep(r);
        const double begin_s = watch_begin(r, l, -1);
        for (int w = 0; w < l->n_waits; w++) TRY(steps_end(r, l->wait[w]));
        TRY(poison_freed(r, l));
        if (i == lp->n) break;
        TRY(run_action(r, i));
        TRY(watch_end(r, l, -1, begin_s));
        TRY(poll_now(r));
    }
    return OK;
}

/* A repeated step is one launch of its graph. At the first repetition the device captures a walk of
 * the list as that graph; if it refuses, and in all other steps, the list is walked. */
Err rank_step(Rank *r, const StepSettings *step, StepResult *out)
{
    TRY(groups_prepare(r));
    start_step(r, step);
    TRY(mailbox_send(r));
    TRY(watch_step(r, step->step));
    bool graph = capture_ready(r);
    if (graph && !r->capture.graph) graph = capture_begin(r) && capture_end(r, walk(r));
    TRY(graph ? capture_launch(r) : walk(r));
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
