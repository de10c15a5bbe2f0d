/* loss.c -- cross entropy of softmax(logits), in steps between which a sharded vocabulary is
 * reduced.
 *
 *     row_max   m[t]                           parts combine by max, those of z by sum
 *     row_sums  z[t] = sum exp(logits - m) without the target, logits[target] - m
 *     loss      sum of weight log(1 + z0 / s), s = exp(z1)
 *     loss_dx   weight exp(logits - m) / (z0 + s); -weight z0 / (z0 + s) at the target
 *
 *     token_loss, token_loss_dx   all of these in one, for an unsharded vocabulary
 *
 * A row of weight 0 is dead: its target may be anything and its numbers reach no result. */
#include "device/ref/ref.h"

#include <math.h>
#include <stddef.h>

static void row_max_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0];
    double max = -HUGE_VAL, x[REF_CHUNK];
    for (int64_t from = 0; from < logits->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(logits->n[1] - from, REF_CHUNK);
        row_load(tensor_row(logits, t), from, n, x);
        for (int64_t i = 0; i < n; i++)
            if (x[i] > max) max = x[i];
    }
    tensor_set(&call->out[0], t, max);
}

Err ref_row_max(const Call *call)
{
    ref_tiles(call, call->in[0].n[0], row_max_tile);
    return OK;
}

static void row_sums_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0];
    const double max = tensor_get(&call->in[1], t);
    const int64_t target = int_at(&call->in[2], t) - call->attr.vocab.base;
    double z[2] = {0, 0}, x[REF_CHUNK];
    for (int64_t from = 0; from < logits->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(logits->n[1] - from, REF_CHUNK);
        row_load(tensor_row(logits, t), from, n, x);
        for (int64_t i = 0; i < n; i++)
            if (from + i != target) z[0] += exp(x[i] - max);
        if (target >= from && target < from + n) z[1] = x[target - from] - max;
    }
    row_store(tensor_row(&call->out[0], t), 0, 2, z);
}

Err ref_row_sums(const Call *call)
{
    ref_tiles(call, call->in[0].n[0], row_sums_tile);
    return OK;
}

/* log(1 + others / exp(below)); exp(below) may underflow. */
static double token_loss_of(double others, double below)
{
    const double self = exp(below);
    return others < self ? log1p(others / self) : log(others + self) - below;
}

Err ref_loss(const Call *call)
{
    const Tensor *z = &call->in[0], *weights = &call->in[1];
    double sum = 0;
    for (int64_t t = 0; t < z->n[0]; t++) {
        const double weight = tensor_get(weights, t);
        if (weight == 0) continue; /* z may be anything, even NaN */
        sum += weight * token_loss_of(tensor_get(z, 2 * t), tensor_get(z, 2 * t + 1));
    }
    row_keep(tensor_row(&call->out[0], 0), 0, 1, call->number[0], &sum);
    return OK;
}

static void loss_dx_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0], *dlogits = &call->out[0];
    const double weight = tensor_get(&call->in[4], t), max = tensor_get(&call->in[1], t);
    const double others = tensor_get(&call->in[2], 2 * t);
    const double sum = others + exp(tensor_get(&call->in[2], 2 * t + 1));
    const int64_t target = int_at(&call->in[3], t) - call->attr.vocab.base;
    double x[REF_CHUNK] = {0};
    for (int64_t from = 0; from < dlogits->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(dlogits->n[1] - from, REF_CHUNK);
        if (weight != 0) {
            row_load(tensor_row(logits, t), from, n, x);
            for (int64_t i = 0; i < n; i++)
                x[i] = from + i == target ? -weight * (others / sum)
                                          : weight * (exp(x[i] - max) / sum);
        }
        row_store(tensor_row(dlogits, t), from, n, x);
    }
}

Err ref_loss_dx(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], loss_dx_tile);
    return OK;
}

enum { BATCH = 256 }; /* rows whose losses are buffered, to be summed in order */

typedef struct {
    const Tensor *logits, *targets, *weights, *dlogits; /* dlogits: or NULL */
    int64_t first;
    double loss[BATCH];
} TokenLoss;

/* Maximum of a row, and its sum of exp(x - max). */
static double row_normalizer(const Tensor *logits, int64_t t, double *max)
{
    double sum = 0, x[REF_CHUNK];
    *max = -HUGE_VAL;
    for (int sweep = 0; sweep < 2; sweep++)
        for (int64_t from = 0; from < logits->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(logits->n[1] - from, REF_CHUNK);
            row_load(tensor_row(logits, t), from, n, x);
            for (int64_t i = 0; i < n; i++) {
                if (sweep == 0 && x[i] > *max) *max = x[i];
                if (sweep == 1) sum += exp(x[i] - *max);
            }
        }
    return sum;
}

static void token_loss_tile(void *work, int64_t i)
{
    TokenLoss *w = work;
    const int64_t t = w->first + i, target = int_at(w->targets, t), width = w->logits->n[1];
    const double weight = tensor_get(w->weights, t);
    double max = 0, sum = 1, x[REF_CHUNK] = {0};
    w->loss[i] = 0;
    if (weight != 0) {
        sum = row_normalizer(w->logits, t, &max);
        const bool there = target >= 0 && target < width;
        if (there) row_load(tensor_row(w->logits, t), target, 1, x);
        w->loss[i] = weight * (log(sum) - (there ? x[0] - max : 0));
    }
    for (int64_t from = 0; from < width && w->dlogits; from += REF_CHUNK) {
        const int64_t n = min_i64(width - from, REF_CHUNK);
        if (weight != 0) row_load(tensor_row(w->logits, t), from, n, x);
        for (int64_t k = 0; k < n; k++)
            x[k] =
                weight == 0 ? 0 : weight * (exp(x[k] - max) / sum - (from + k == target ? 1 : 0));
        row_store(tensor_row(w->dlogits, t), from, n, x);
    }
}

static void token_loss(const Call *call, const Tensor *dlogits, const Tensor *loss, double keep)
{
    TokenLoss w = {.logits = &call->in[0],
                   .targets = &call->in[1],
                   .weights = &call->in[2],
                   .dlogits = dlogits};
    double sum = 0;
    for (; w.first < w.logits->n[0]; w.first += BATCH) {
        const int64_t n = min_i64(w.logits->n[0] - w.first, BATCH);
        team_run(call->team, n, token_loss_tile, &w);
        for (int64_t i = 0; i < n; i++) sum += w.loss[i];
    }
    row_keep(tensor_row(loss, 0), 0, 1, keep, &sum);
}

Err ref_token_loss(const Call *call)
{
    token_loss(call, NULL, &call->out[0], call->number[0]);
    return OK;
}

Err ref_token_loss_dx(const Call *call)
{
    token_loss(call, &call->out[0], &call->out[1], call->number[1]);
    return OK;
}
