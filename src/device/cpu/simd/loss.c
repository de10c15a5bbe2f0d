/* loss.c -- cross entropy of softmax(logits) in steps, for a vocabulary that is sharded over ranks.
 *
 *     row_max   m[t]                                               shards reduce by max
 *     row_sums  z[t] = sum exp(logits - m), logits[target] - m     shards reduce by sum
 *     loss      sum of weight (log z0 - z1)
 *     loss_dx   weight (exp(logits - m) / z0 - one at the target)
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
        V part = {0};
        for (int64_t i = 0; i < whole; i += W) part += v_exp(v_load(x + i) - max);
        if (whole < n) { /* lanes past the end must not be added */
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

/* A few thousand rows of two numbers: the reference is fast enough, and sums in f64 in index
 * order. */
Err CPU_NAME(loss)(const Call *call) { return ref_loss(call); }

static void loss_dx_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *logits = &call->in[0], *dlogits = &call->out[0];
    const float weight = stat_get(&call->in[4], t), max = stat_get(&call->in[1], t);
    const float factor = weight == 0 ? 0 : weight / stat_get(&call->in[2], 2 * t);
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
