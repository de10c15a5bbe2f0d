/* loss.c -- cross entropy of softmax(logits), in steps that a cut vocabulary can be summed between.
 *
 *     row_max   m[t]                           parts combine by max
 *     row_sums  z[t] = sum exp(logits - m), logits[target] - m       parts combine by sum
 *     loss      sum of weight (log z0 - z1)
 *     loss_dx   weight (exp(logits - m) / z0 - one at the target)
 *
 *     token_loss, token_loss_dx   all of these at once, of a vocabulary that is not cut
 *
 * Each reads the logits once from memory; token_loss_dx a second time from a cache. A row of weight 0 is dead: its target may be anything and its numbers
 * reach no result. */
#include "device/cpu/simd/math.h"
#include "device/cpu/simd/simd.h"

static void row_max_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0];
    float buffer[PIECE], max = -HUGE_VALF;
    for (int64_t from = 0; from < logits->n[1]; from += PIECE) {
        const int64_t n = least(logits->n[1] - from, PIECE), whole = n - n % W;
        const float *x = read_piece(tensor_row(logits, t), from, n, buffer);
        V part = v_set(max);
        for (int64_t i = 0; i < whole; i += W) part = v_max(v_load(x + i), part); /* no NaN */
        max = v_largest(part);
        for (int64_t i = whole; i < n; i++) max = x[i] > max ? x[i] : max;
    }
    tensor_set(&call->out[0], t, (double)max);
}

Err CPU_NAME(row_max)(const Call *call)
{
    const Tensor *x = &call->in[0];
    run_rows(call->team, x->n[0], x->n[1], row_max_row, call);
    return OK;
}

static void row_sums_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0];
    const float max = stat_get(&call->in[1], t);
    const int64_t target = int_at(&call->in[2], t) - call->attr.vocab.base;
    double z[2] = {0, 0};
    float buffer[PIECE];
    for (int64_t from = 0; from < logits->n[1]; from += PIECE) {
        const int64_t n = least(logits->n[1] - from, PIECE), whole = n - n % W;
        const float *x = read_piece(tensor_row(logits, t), from, n, buffer);
        V part = {0};
        for (int64_t i = 0; i < whole; i += W) part += v_exp(v_load(x + i) - max);
        if (whole < n) { /* lanes past the end must not count: exp(-inf) is 0 */
            const V tail = v_load_to(x + whole, n - whole) - max;
            float e[W];
            v_store(e, v_exp(tail));
            for (int64_t i = 0; i < n - whole; i++) part[0] += e[i];
        }
        z[0] += (double)v_sum(part);
        if (target >= from && target < from + n) z[1] = (double)(x[target - from] - max);
    }
    row_store(tensor_row(&call->out[0], t), 0, 2, z);
}

Err CPU_NAME(row_sums)(const Call *call)
{
    const Tensor *x = &call->in[0];
    run_rows(call->team, x->n[0], x->n[1], row_sums_row, call);
    return OK;
}

/* A few thousand rows of two numbers: nothing to gain. The f64 sum in index order is kept. */
Err CPU_NAME(loss)(const Call *call) { return ref_loss(call); }

static void loss_dx_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0], *dlogits = &call->out[0];
    const float weight = stat_get(&call->in[4], t), max = stat_get(&call->in[1], t);
    const float factor = weight == 0 ? 0 : weight / stat_get(&call->in[2], 2 * t);
    const int64_t target = int_at(&call->in[3], t) - call->attr.vocab.base;
    const Row to = tensor_row(dlogits, t);
    float buffer[2][PIECE];
    for (int64_t from = 0; from < dlogits->n[1]; from += PIECE) {
        const int64_t n = least(dlogits->n[1] - from, PIECE);
        float *y = write_piece(to, from, buffer[1]);
        if (weight == 0) {
            memset(y, 0, (size_t)n * sizeof *y);
        } else {
            const float *x = read_piece(tensor_row(logits, t), from, n, buffer[0]);
            for (int64_t i = 0; i < n; i += W)
                v_store_to(y + i, n - i, factor * v_exp(v_load_to(x + i, n - i) - max));
            if (target >= from && target < from + n) y[target - from] -= weight;
        }
        end_piece(to, from, n, y);
    }
}

Err CPU_NAME(loss_dx)(const Call *call)
{
    const Tensor *y = &call->out[0];
    run_rows(call->team, y->n[0], y->n[1], loss_dx_row, call);
    return OK;
}

enum { BATCH = 1024 }; /* rows whose losses wait to be summed in order */

typedef struct {
    const Tensor *logits, *targets, *weights, *dlogits; /* dlogits: or NULL */
    int64_t first;
    double *loss; /* [BATCH] */
} TokenLoss;

/* Sum of exp(x - max) of a piece. */
static double sum_exp(const float *x, int64_t n, float max)
{
    const int64_t whole = n - n % W;
    V part = {0};
    for (int64_t i = 0; i < whole; i += W) part += v_exp(v_load(x + i) - max);
    if (whole < n) { /* lanes past the end must not count */
        float e[W];
        v_store(e, v_exp(v_load_to(x + whole, n - whole) - max));
        for (int64_t i = 0; i < n - whole; i++) part[0] += e[i];
    }
    return (double)v_sum(part);
}

/* Maximum of a row, and its sum of exp(x - max), which is rescaled when a larger one comes. */
static double row_normalizer(const Tensor *logits, int64_t t, float *max)
{
    float buffer[PIECE];
    double sum = 0;
    *max = -HUGE_VALF;
    for (int64_t from = 0; from < logits->n[1]; from += PIECE) {
        const int64_t n = least(logits->n[1] - from, PIECE), whole = n - n % W;
        const float *x = read_piece(tensor_row(logits, t), from, n, buffer);
        V part = v_set(*max);
        for (int64_t i = 0; i < whole; i += W) part = v_max(v_load(x + i), part); /* no NaN */
        float larger = v_largest(part);
        for (int64_t i = whole; i < n; i++) larger = x[i] > larger ? x[i] : larger;
        if (larger > *max && sum != 0) sum *= exp((double)*max - (double)larger);
        *max = larger;
        if (larger > -HUGE_VALF) sum += sum_exp(x, n, larger); /* else all are exp(-inf) */
    }
    return sum;
}

static void token_dx_row(const TokenLoss *w, int64_t t, float max, double sum)
{
    const float weight = stat_get(w->weights, t), factor = (float)((double)weight / sum);
    const int64_t target = int_at(w->targets, t);
    const Row to = tensor_row(w->dlogits, t);
    float buffer[2][PIECE];
    for (int64_t from = 0; from < w->dlogits->n[1]; from += PIECE) {
        const int64_t n = least(w->dlogits->n[1] - from, PIECE);
        const float *x = read_piece(tensor_row(w->logits, t), from, n, buffer[0]);
        float *y = write_piece(to, from, buffer[1]);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(y + i, n - i, factor * v_exp(v_load_to(x + i, n - i) - max));
        if (target >= from && target < from + n) y[target - from] -= weight;
        end_piece(to, from, n, y);
    }
}

static void zero_row(const Tensor *x, int64_t t)
{
    static const float zero[PIECE];
    for (int64_t from = 0; from < x->n[1]; from += PIECE)
        store_piece(tensor_row(x, t), from, least(x->n[1] - from, PIECE), zero);
}

static void token_loss_row(const void *work, int64_t i)
{
    const TokenLoss *w = work;
    const int64_t t = w->first + i, target = int_at(w->targets, t);
    const float weight = stat_get(w->weights, t);
    float max, x = 0;
    w->loss[i] = 0;
    if (weight == 0) {
        if (w->dlogits) zero_row(w->dlogits, t);
        return;
    }
    const double sum = row_normalizer(w->logits, t, &max);
    const bool there = target >= 0 && target < w->logits->n[1];
    if (there) load_piece(tensor_row(w->logits, t), target, 1, &x);
    w->loss[i] = (double)weight * (log(sum) - (there ? (double)x - (double)max : 0));
    if (w->dlogits) token_dx_row(w, t, max, sum);
}

static void token_loss(const Call *call, const Tensor *dlogits, const Tensor *out, double keep)
{
    double loss[BATCH], sum = 0;
    TokenLoss w = {&call->in[0], &call->in[1], &call->in[2], dlogits, 0, loss};
    for (; w.first < w.logits->n[0]; w.first += BATCH) {
        const int64_t n = least(w.logits->n[0] - w.first, BATCH);
        run_rows(call->team, n, w.logits->n[1], token_loss_row, &w);
        for (int64_t i = 0; i < n; i++) sum += loss[i];
    }
    row_keep(tensor_row(out, 0), 0, 1, keep, &sum);
}

Err CPU_NAME(token_loss)(const Call *call)
{
    token_loss(call, NULL, &call->out[0], call->number[0]);
    return OK;
}

Err CPU_NAME(token_loss_dx)(const Call *call)
{
    token_loss(call, &call->out[0], &call->out[1], call->number[1]);
    return OK;
}
