/* rank.c -- opening a rank, and walking its list. */
#include "run/rank.h"

#include <math.h>
#include <stdlib.h>
#include "run/rank_parts.h"

Err rank_open(Rank *r, const RankSettings *settings)
{
    const LinkedProgram *lp = settings->program;
    *r = (Rank){.settings = *settings};
    TRY(device_check(settings->device));
    TRY(execute_check_calls(lp));
    TRY(steps_check(r));
    TRY(prepack_check(r));
    TRY(memory_open(r));
    r->live_rows = calloc((size_t)lp->micros, sizeof *r->live_rows);
    r->ticket = calloc((size_t)lp->n + 1, sizeof *r->ticket);
    if (!r->live_rows || !r->ticket)
        return err_fail(ERR_NOMEM, "no memory for %d micro-batches and %d actions", lp->micros,
                        lp->n);
    for (int m = 0; m < lp->micros; m++) r->live_rows[m] = lp->model->rows;
    r->slot[SLOT_ONE] = 1.0;
    TRY(timestamps_open(r));
    TRY(capture_open(r));
    return r->runtime ? lists_open(r) : OK;
}

void rank_close(Rank *r)
{
    memory_close(r);
    free(r->live_rows);
    free(r->ticket);
    *r = (Rank){0};
}

Tensor rank_input(Rank *r, int micro, Input which)
{
    const LinkedProgram *lp = r->settings.program;
    const bool ranges = which == INPUT_RANGES;
    Tensor t = {.dtype = which == INPUT_WEIGHTS ? dtype_wide(lp->model->dtype) : I32,
                .ndim = ranges ? 2 : 1};
    t.data = desk_of(r, lp->input[which] + (size_t)micro * lp->input_stride);
    t.n[0] = lp->model->rows;
    t.n[1] = 4;
    t.stride[0] = ranges ? 4 : 1;
    t.stride[1] = 1;
    return t;
}

void rank_set_rows(Rank *r, int micro, int64_t rows)
{
    MUST(rows >= 0 && rows <= r->settings.program->model->rows, "%lld rows", (long long)rows);
    r->live_rows[micro] = rows;
}

void rank_set_asked(Rank *r, int64_t rows)
{
    MUST(rows >= 0 && rows <= r->settings.program->model->asked, "%lld rows", (long long)rows);
    r->slot[SLOT_ASKED] = (double)rows;
}

/* What the head hands on, to nobody: its memory is free for the next call alone. */
static Tensor find_logits(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = lp->n - 1; i >= 0; i--) {
        const Linked *l = &lp->list[i];
        if (l->action.kind != A_RUN || l->action.unit != lp->model->n_units - 1) continue;
        for (int t = 0; t < l->program->n_tensors; t++) {
            const ProgTensor *x = &l->program->tensor[t];
            if (x->at[SPLIT].region != REGION_Y || x->view_of != t) continue;
            return (Tensor){r->base[ARENA_WORK] + l->base[REGION_Y] + x->at[SPLIT].offset,
                            x->dtype,
                            2,
                            {(int64_t)r->slot[SLOT_ASKED], x->dim[1].cap},
                            {x->stride[0], x->stride[1]}};
        }
    }
    return (Tensor){0};
}

/* Of memory that is not the host's, a copy, of as many rows as were ever asked for. */
Err rank_logits(Rank *r, Tensor *out)
{
    *out = find_logits(r);
    if (rank_on_host(r) || !out->data) return OK;
    const size_t row = (size_t)out->stride[0] * dtype_bytes(out->dtype);
    if (!r->logits) r->logits = malloc((size_t)r->settings.program->model->asked * row + 1);
    if (!r->logits)
        return err_fail(ERR_NOMEM, "no memory for logits of %lld rows",
                        (long long)r->settings.program->model->asked);
    TRY(rank_read(r, out->data, (size_t)out->n[0] * row, r->logits));
    out->data = r->logits;
    return OK;
}

static void set_slots(Rank *r, const StepSettings *step)
{
    const OptimSettings *o = &r->settings.optim;
    const double update = (double)(step->update ? step->update : step->step);
    r->tallied = r->judged = r->clipped = false;
    r->norm = 0;
    r->skips = false;
    r->slot[SLOT_LR] = step->lr;
    r->slot[SLOT_BIAS1] = 1.0 - pow(o->beta1, update);
    r->slot[SLOT_BIAS2] = 1.0 - pow(o->beta2, update);
}

static Err act(Rank *r, int at)
{
    const Linked *l = &r->settings.program->list[at];
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
    case A_DROP: /* its memory is taken again by what was packed there */
        return OK;
    case A_NORM:
        return execute_norm(r);
    case A_UPDATE:
        return execute_update(r, l->action.unit);
    case A_BIND:
        r->bound[l->action.unit] = r->pending[l->action.unit];
        return OK;
    default:
        MUST(false, "action %d of kind %d was linked", at, l->action.kind);
        return OK;
    }
}

/* The end of the list is one more position, which only waits. */
static Err walk(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i <= lp->n; i++) {
        const Linked *l = &lp->list[i];
        nap(r);
        const double begin_s = watch_begin(r, l, -1);
        for (int w = 0; w < l->n_waits; w++) TRY(steps_end(r, l->wait[w]));
        TRY(poison_freed(r, l));
        if (i == lp->n) break;
        TRY(act(r, i));
        TRY(watch_end(r, l, -1, begin_s));
        TRY(steps_poll(r));
    }
    return OK;
}

Err rank_step(Rank *r, const StepSettings *step, StepResult *out)
{
    TRY(steps_prepare(r));
    set_slots(r, step);
    execute_numbers(r);
    TRY(desk_send(r));
    TRY(watch_step(r, step->step));
    TRY(capture_run(r, walk));
    TRY(execute_tally(r));
    TRY(watch_step(r, 0));
    *out = (StepResult){.loss_sum = r->loss_sum,
                        .grad_norm = r->norm,
                        .live_tokens = r->live_tokens,
                        .skipped = r->skips};
    out->loss = r->live_tokens ? r->loss_sum / (double)r->live_tokens : 0.0;
    return OK;
}
