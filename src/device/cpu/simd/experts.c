/* experts.c -- rows of tokens to the rows of their experts, and back; the gate of a shared expert.
 *
 * Router and slot assignment take O(experts) per token and run as on device ref, so that both make
 * the same choices. */
#include "device/grouped.h"

#include "device/cpu/simd/simd.h"

Err CPU_NAME(route)(const Call *call) { return ref_route(call); }

Err CPU_NAME(route_dx)(const Call *call) { return ref_route_dx(call); }

Err CPU_NAME(expert_excess)(const Call *call) { return ref_expert_excess(call); }

Err CPU_NAME(limit_choices)(const Call *call) { return ref_limit_choices(call); }

Err CPU_NAME(assign_rows)(const Call *call) { return ref_assign_rows(call); }

/* Rows between ranks are numbered and copied as they are. */
Err CPU_NAME(send_rows)(const Call *call) { return ref_send_rows(call); }
Err CPU_NAME(sum_offsets)(const Call *call) { return ref_sum_offsets(call); }
Err CPU_NAME(collect_rows)(const Call *call) { return ref_collect_rows(call); }
Err CPU_NAME(spread_rows)(const Call *call) { return ref_spread_rows(call); }
Err CPU_NAME(return_rows)(const Call *call) { return ref_return_rows(call); }

static int64_t row_of(const Tensor *at, int64_t t, int64_t k)
{
    return ((const int32_t *)at->data)[t * at->stride[0] + k * at->stride[1]];
}

static float gate_of(const Call *call, int64_t t, int64_t k)
{
    const Tensor *gate = &call->in[2];
    return call->n_in > 2 ? (float)tensor_get(gate, t * gate->n[1] + k) : 1;
}

static void permute_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *at = &call->in[1], *y = &call->out[0];
    _Alignas(64) float buffer[PIECE], scaled[PIECE];
    for (int64_t from = 0; from < x->n[1]; from += PIECE) {
        const int64_t n = min_i64(x->n[1] - from, PIECE);
        const float *row = read_piece(tensor_row(x, t), from, n, buffer);
        for (int64_t k = 0; k < at->n[1]; k++) {
            const int64_t to = row_of(at, t, k);
            if (to < 0) continue;
            const float gate = gate_of(call, t, k);
            for (int64_t i = 0; i < n; i += W)
                v_store_to(scaled + i, n - i, gate * v_load_to(row + i, n - i));
            store_piece(tensor_row(y, to), from, n, scaled);
        }
    }
}

Err CPU_NAME(permute)(const Call *call)
{
    const Tensor *x = &call->in[0], *at = &call->in[1];
    run_rows(call->team, x->n[0], x->n[1] * at->n[1], permute_row, call);
    return OK;
}

enum { LEVELS = 11, SOME = 256 }; /* of a pairwise sum over choices; elements at a time */

/* Gate times n elements of the row of choice k; zeros if it has none. */
static void load_choice(const Call *call, int64_t t, int64_t k, int64_t from, int64_t n, float *x)
{
    const int64_t row = row_of(&call->in[0], t, k);
    const float gate = gate_of(call, t, k);
    _Alignas(64) float buffer[SOME];
    if (row < 0) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    const float *const y = read_piece(tensor_row(&call->in[1], row), from, n, buffer);
    for (int64_t i = 0; i < n; i += W) v_store_to(x + i, n - i, gate * v_load_to(y + i, n - i));
}

static void add_to(float *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        v_store_to(sum + i, n - i, v_load_to(sum + i, n - i) + v_load_to(x + i, n - i));
}

/* In the order of device ref: sum[level] waits for its pair, 2^level choices each. */
static void unpermute_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->out[0];
    const int64_t choices = call->in[0].n[1];
    _Alignas(64) float sum[LEVELS][SOME], out[SOME];
    for (int64_t from = 0; from < x->n[1]; from += SOME) {
        const int64_t n = min_i64(x->n[1] - from, SOME);
        for (int64_t k = 0; k < choices; k++) {
            int level = 0;
            load_choice(call, t, k, from, n, out);
            for (; k >> level & 1; level++) add_to(out, sum[level], n);
            memcpy(sum[level], out, (size_t)n * sizeof *out);
        }
        memset(out, 0, (size_t)n * sizeof *out);
        for (int level = 0; level < LEVELS; level++)
            if (choices >> level & 1) add_to(out, sum[level], n);
        store_piece(tensor_row(x, t), from, n, out);
    }
}

Err CPU_NAME(unpermute)(const Call *call)
{
    const Tensor *x = &call->out[0], *at = &call->in[0];
    run_rows(call->team, x->n[0], x->n[1] * at->n[1], unpermute_row, call);
    return OK;
}

/* The dot product of two rows of `length` elements. */
static float dot_rows(RowRef a, RowRef b, int64_t length)
{
    _Alignas(64) float x[PIECE], y[PIECE];
    V sum = {0};
    for (int64_t from = 0; from < length; from += PIECE) {
        const int64_t n = min_i64(length - from, PIECE);
        const float *const left = read_piece(a, from, n, x), *const right =
                                                                 read_piece(b, from, n, y);
        for (int64_t i = 0; i < n; i += W)
            sum += v_load_to(left + i, n - i) * v_load_to(right + i, n - i);
    }
    return v_sum(sum);
}

static void dgate_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *dx = &call->in[0], *at = &call->in[1], *y = &call->in[2];
    for (int64_t k = 0; k < at->n[1]; k++) {
        const int64_t row = row_of(at, t, k);
        const float dot = row < 0 ? 0 : dot_rows(tensor_row(dx, t), tensor_row(y, row), dx->n[1]);
        tensor_set(&call->out[0], t * at->n[1] + k, (double)dot);
    }
}

Err CPU_NAME(permute_dgate)(const Call *call)
{
    const Tensor *dx = &call->in[0], *at = &call->in[1];
    run_rows(call->team, dx->n[0], dx->n[1] * at->n[1], dgate_row, call);
    return OK;
}

Err CPU_NAME(grouped_swiglu)(const Call *call)
{
    const Call live = grouped_live(call);
    return CPU_NAME(swiglu)(&live);
}

Err CPU_NAME(grouped_swiglu_dx)(const Call *call)
{
    const Call live = grouped_live(call);
    return CPU_NAME(swiglu_dx)(&live);
}

Err CPU_NAME(grouped_quantize)(const Call *call)
{
    return grouped_quantize_each(call, CPU_NAME(amax), CPU_NAME(quantize));
}

Err CPU_NAME(stack_quantize)(const Call *call) { return CPU_NAME(grouped_quantize)(call); }

Err CPU_NAME(grouped_scaled_gemm)(const Call *call)
{
    return grouped_scaled_each(call, CPU_NAME(scaled_gemm), false);
}

Err CPU_NAME(grouped_scaled_gemm_dw)(const Call *call)
{
    return grouped_scaled_each(call, CPU_NAME(scaled_gemm), true);
}

Err CPU_NAME(grouped_gemm_swiglu)(const Call *call)
{
    return grouped_swiglu_by_parts(call, CPU_NAME(grouped_gemm), CPU_NAME(grouped_swiglu));
}

Err CPU_NAME(grouped_gemm_dswiglu)(const Call *call)
{
    return grouped_dswiglu_by_parts(call, CPU_NAME(grouped_gemm), CPU_NAME(grouped_swiglu_dx));
}

Err CPU_NAME(grouped_gemm_pair)(const Call *call)
{
    return grouped_pair_by_parts(call, CPU_NAME(grouped_gemm));
}

static float sigmoid(const Tensor *s, int64_t t)
{
    return (float)(1 / (1 + exp(-tensor_get(s, t))));
}

static void gate_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const float gate = sigmoid(&call->in[1], t);
    _Alignas(64) float in[PIECE], out[PIECE];
    for (int64_t from = 0; from < y->n[1]; from += PIECE) {
        const int64_t n = min_i64(y->n[1] - from, PIECE);
        const float *row = read_piece(tensor_row(x, t), from, n, in);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(out + i, n - i, gate * v_load_to(row + i, n - i));
        store_piece(tensor_row(y, t), from, n, out);
    }
}

Err CPU_NAME(sigmoid_gate)(const Call *call)
{
    run_rows(call->team, call->out[0].n[0], call->out[0].n[1], gate_row, call);
    return OK;
}

static void gate_dx_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
    const float gate = sigmoid(&call->in[2], t);
    const float dot = dot_rows(tensor_row(dy, t), tensor_row(x, t), dx->n[1]);
    const Call scaled = {.in = {*dy, call->in[2]}, .out = {*dx}};
    gate_row(&scaled, t);
    tensor_set(&call->out[1], t, (double)(dot * gate * (1 - gate)));
}

Err CPU_NAME(sigmoid_gate_dx)(const Call *call)
{
    run_rows(call->team, call->out[0].n[0], 2 * call->out[0].n[1], gate_dx_row, call);
    return OK;
}
