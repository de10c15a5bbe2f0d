/* loss.c -- cross entropy of softmax(logits) in steps, for a vocabulary that is sharded over ranks.
 *
 *     row_max   m[t]                               shards reduce by max, those of z by sum
 *     row_sums  z[t] = sum exp(logits - m) without the target, logits[target] - m
 *     loss      sum of weight log(1 + z0 / s), s = exp(z1)
 *     loss_dx   weight exp(logits - m) / (z0 + s); -weight z0 / (z0 + s) at the target
 *
 * Each kernel reads the logits from memory once. A row of weight 0 is masked: its target may have
 * any value, and its logits affect no result. token_loss.c fuses all steps for a whole
 * vocabulary. */
#include "device/cpu/simd/math.h"
#include "device/cpu/simd/simd.h"

static void row_max_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0];
    float buffer[PIECE], max = -HUGE_VALF;
    for (int64_t from = 0; from < logits->n[1]; from += PIECE) {
        const int64_t n = min_i64(logits->n[1] - from, PIECE), whole = n - n % W;
        const float *x = read_piece(tensor_row(logits, t), from, n, buffer);
        V part = v_set(max);
        for (int64_t i = 0; i < whole; i += W) part = v_max(v_load(x + i), part); /* skips NaN */
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

/* Sum of exp(x - max) over at most W elements but number `at`; lanes past the end are not added. */
static float sum_without(const float *x, int64_t n, int64_t at, float max)
{
    float e[W], sum = 0;
    v_store(e, v_exp(v_load_to(x, n) - max));
    for (int64_t i = 0; i < n; i++) sum += i == at ? 0 : e[i];
    return sum;
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
        const int64_t n = min_i64(logits->n[1] - from, PIECE), whole = n - n % W;
        const float *x = read_piece(tensor_row(logits, t), from, n, buffer);
        const int64_t at = target >= from && target < from + n ? target - from : -1;
        const int64_t skipped = at < 0 || at >= whole ? -1 : at - at % W; /* its vector */
        V part = {0};
        for (int64_t i = 0; i < whole; i += W)
            if (i != skipped) part += v_exp(v_load(x + i) - max);
        if (skipped >= 0) part[0] += sum_without(x + skipped, W, at - skipped, max);
        if (whole < n) part[0] += sum_without(x + whole, n - whole, at - whole, max);
        z[0] += (double)v_sum(part);
        if (at >= 0) z[1] = (double)(x[at] - max);
    }
    row_store(tensor_row(&call->out[0], t), 0, 2, z);
}

Err CPU_NAME(row_sums)(const Call *call)
{
    const Tensor *x = &call->in[0];
    run_rows(call->team, x->n[0], x->n[1], row_sums_row, call);
    return OK;
}

/* A few thousand rows of two numbers: the reference is fast enough, and sums in f64 in index
 * order. */
Err CPU_NAME(loss)(const Call *call) { return ref_loss(call); }

static void loss_dx_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0], *dlogits = &call->out[0];
    const float weight = stat_get(&call->in[4], t), max = stat_get(&call->in[1], t);
    const double others = (double)stat_get(&call->in[2], 2 * t);
    const double sum = others + exp((double)stat_get(&call->in[2], 2 * t + 1));
    const float factor = weight == 0 ? 0 : (float)((double)weight / sum);
    const int64_t target = int_at(&call->in[3], t) - call->attr.vocab.base;
    const RowRef to = tensor_row(dlogits, t);
    float buffer[2][PIECE];
    for (int64_t from = 0; from < dlogits->n[1]; from += PIECE) {
        const int64_t n = min_i64(dlogits->n[1] - from, PIECE);
        float *y = write_piece(to, from, buffer[1]);
        if (weight == 0) {
            memset(y, 0, (size_t)n * sizeof *y);
        } else {
            const float *x = read_piece(tensor_row(logits, t), from, n, buffer[0]);
            for (int64_t i = 0; i < n; i += W)
                v_store_to(y + i, n - i, factor * v_exp(v_load_to(x + i, n - i) - max));
            if (target >= from && target < from + n)
                y[target - from] = (float)((double)-weight * (others / sum));
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
