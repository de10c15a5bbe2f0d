/* optimize.c -- the end of a step: sums over the holders of tied weights, the norm of the gradient,
 * the update.
 *
 * What was back-propagated is the sum of token losses, so one factor on the gradients does the
 * division by live tokens and the clip together. The norm is a fold of f64 sums over blocks of a
 * unit's pack, in order: no cut of the pack crosses a block, so every layout folds the same
 * numbers. */
#include <math.h>

#include "run/execute.h"

static Err sum_squares(Rank *r, Tensor x, double *sum)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team};
    double *cell = (double *)(void *)(r->base[ARENA_STEP] + r->settings.program->norm);
    c.in[0] = x;
    c.out[0] = (Tensor){.data = cell, .dtype = F64, .ndim = 1, .n = {1}, .stride = {1}};
    TRY(r->settings.device->kernel[KERNEL_sum_squares](&c));
    *sum = *cell;
    return OK;
}

static Err unit_squares(Rank *r, int unit, double *total)
{
    const LinkedProgram *lp = r->settings.program;
    const int64_t count = lp->model->unit[unit].pack_count, block = r->settings.optim.block;
    const DType wide = dtype_wide(lp->model->dtype);
    char *grads = r->base[ARENA_STEP] + lp->unit[unit].grads;
    for (int64_t at = 0; at < count; at += block) {
        const int64_t n = count - at < block ? count - at : block;
        const Tensor x = {grads + (size_t)at * dtype_bytes(wide), wide, 1, {n}, {1}};
        double sum;
        TRY(sum_squares(r, x, &sum));
        *total += sum;
    }
    return OK;
}

Err execute_norm(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const double clip = r->settings.optim.clip;
    const double mean = r->live_tokens ? 1.0 / (double)r->live_tokens : 0.0;
    double total = 0;
    for (int u = 0; u < lp->model->n_units; u++) TRY(unit_squares(r, u, &total));
    r->norm = sqrt(total) * mean;
    r->slot[SLOT_FACTOR] = clip > 0 && r->norm > clip ? mean * (clip / r->norm) : mean;
    return OK;
}

static Tensor flat(Tensor x)
{
    x.n[0] = tensor_count(&x);
    x.stride[0] = 1;
    x.ndim = 1;
    return x;
}

Err execute_publish(Rank *r, int param)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team};
    c.in[0] = flat(rank_param(r, param, PART_MASTER));
    c.out[0] = flat(rank_param(r, param, PART_WEIGHT));
    if (c.in[0].dtype == c.out[0].dtype) return OK;
    return r->settings.device->kernel[KERNEL_cast](&c);
}

/* Parameter `param` of the model as another unit names it: that unit's sum, or NULL data. */
static Tensor guest_sum(const Rank *r, int param, int unit)
{
    const LinkedProgram *lp = r->settings.program;
    const Unit *u = &lp->model->unit[unit];
    Tensor t = flat(rank_param(r, param, PART_GRAD));
    t.data = NULL;
    for (int k = 0; k < u->n_params; k++)
        if (u->param[k] == param) t.data = r->base[ARENA_STEP] + linked_grad(lp, unit, k);
    return t;
}

/* Left fold over the holders, in the order of units. */
Err execute_reduce(Rank *r, int unit)
{
    const Model *m = r->settings.program->model;
    for (int i = 0; i < m->n_params; i++) {
        const Param *p = &m->param[i];
        for (int h = 1; p->holder[0] == unit && h < p->n_holders; h++) {
            Call c = {.n_in = 2, .n_out = 1, .team = r->settings.team};
            c.in[0] = c.out[0] = flat(rank_param(r, i, PART_GRAD));
            c.in[1] = guest_sum(r, i, p->holder[h]);
            TRY(r->settings.device->kernel[KERNEL_add](&c));
        }
    }
    return OK;
}

static Err update_param(Rank *r, int param)
{
    const OptimSettings *o = &r->settings.optim;
    const double decay =
        r->settings.program->model->param[param].info.decay ? o->weight_decay : 0.0;
    const bool adamw = o->kind == OPTIM_ADAMW;
    Call c = {.n_in = 1, .n_out = adamw ? 3 : 1, .team = r->settings.team};
    c.in[0] = flat(rank_param(r, param, PART_GRAD));
    c.out[0] = flat(rank_param(r, param, PART_MASTER));
    c.number[0] = r->slot[SLOT_LR];
    c.number[1] = r->slot[SLOT_FACTOR];
    if (!adamw) {
        c.attr.sgd.decay = decay;
        return r->settings.device->kernel[KERNEL_sgd](&c);
    }
    c.out[1] = flat(rank_param(r, param, PART_MOMENT1));
    c.out[2] = flat(rank_param(r, param, PART_MOMENT2));
    c.number[2] = r->slot[SLOT_BIAS1];
    c.number[3] = r->slot[SLOT_BIAS2];
    c.attr.adamw.beta1 = o->beta1;
    c.attr.adamw.beta2 = o->beta2;
    c.attr.adamw.eps = o->eps;
    c.attr.adamw.decay = decay;
    return r->settings.device->kernel[KERNEL_adamw](&c);
}

Err execute_update(Rank *r, int unit)
{
    const Model *m = r->settings.program->model;
    for (int i = 0; i < m->n_params; i++)
        if (m->param[i].holder[0] == unit) {
            TRY(update_param(r, i));
            TRY(execute_publish(r, i));
        }
    return OK;
}
