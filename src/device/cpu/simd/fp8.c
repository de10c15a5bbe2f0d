/* fp8.c -- FP8 on a CPU, which has no arithmetic for it: quantization to the bits of ref, and GEMMs
 * on operands that are widened to f32 first.
 *
 *     a, sa --widen--> f32 --+
 *                            +--> the GEMM for f32 --> c
 *     b, sb --widen--> f32 --+        */
#include "base/fp8.h"

#include <math.h>
#include "device/by.h"
#include "device/cpu/simd/gemm/gemm.h"
#include "device/cpu/workspace.h"

enum { MAX_PARTS = 64 };

/* Largest magnitudes of parts of the rows. */
typedef struct {
    const Tensor *x;
    int64_t parts;
    float most[MAX_PARTS];
} LargestOf;

static float largest_of_row(RowRef r, int64_t from, int64_t n)
{
    _Alignas(64) float buffer[PIECE];
    float most = 0;
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t part = min_i64(n - done, PIECE);
        const float *x = read_piece(r, from + done, part, buffer);
        for (int64_t i = 0; i < part; i++) {
            const float size = fabsf(x[i]);
            most = size > most ? size : most; /* false for NaN */
        }
    }
    return most;
}

static void largest_part(void *work, int64_t part)
{
    LargestOf *l = work;
    const int64_t rows = l->x->n[0], end = rows * (part + 1) / l->parts;
    float most = 0;
    for (int64_t i = rows * part / l->parts; i < end; i++)
        most = fmaxf(most, largest_of_row(tensor_row(l->x, i), 0, l->x->n[1]));
    l->most[part] = most;
}

Err CPU_NAME(amax)(const Call *call)
{
    LargestOf l = {.x = &call->in[0], .parts = min_i64(call->in[0].n[0], MAX_PARTS)};
    float most = 0;
    if (l.parts > 0) team_run(call->team, l.parts, largest_part, &l);
    for (int64_t i = 0; i < l.parts; i++) most = fmaxf(most, l.most[i]);
    tensor_set(&call->out[0], 0, (double)most);
    return OK;
}

static void quantize_piece(DType type, RowRef from, RowRef to, int64_t at, int64_t n, float inverse)
{
    _Alignas(64) float buffer[PIECE];
    const Fp8Format format = fp8_format(type);
    for (int64_t done = 0; done < n; done += PIECE) {
        const int64_t part = min_i64(n - done, PIECE);
        const float *x = read_piece(from, at + done, part, buffer);
        uint8_t *y = (uint8_t *)to.at + (at + done) * to.stride;
        for (int64_t i = 0; i < part; i++) y[i * to.stride] = fp8_round(format, x[i] * inverse);
    }
}

static void quantize_row(const void *work, int64_t i)
{
    const Call *call = work;
    const DType type = call->attr.quantize.type;
    const Fp8Scale s = fp8_scale(type, (float)tensor_get(&call->in[1], 0));
    quantize_piece(type, tensor_row(&call->in[0], i), tensor_row(&call->out[0], i), 0,
                   call->in[0].n[1], s.inverse);
}

Err CPU_NAME(quantize)(const Call *call)
{
    const float m = (float)tensor_get(&call->in[1], 0);
    run_rows(call->team, call->in[0].n[0], call->in[0].n[1], quantize_row, call);
    tensor_set(&call->out[1], 0, (double)fp8_scale(call->attr.quantize.type, m).scale);
    return OK;
}

Err CPU_NAME(quantize_turned)(const Call *call)
{
    Call p = *call;
    p.out[0] = tensor_transposed(&call->out[0]);
    return CPU_NAME(quantize)(&p);
}

Err CPU_NAME(quantize_both)(const Call *call)
{
    const Call z = call_quantize_turned(call);
    TRY(CPU_NAME(quantize)(call));
    return CPU_NAME(quantize_turned)(&z);
}

/* ---- delayed scaling ---- */

Err CPU_NAME(delayed_scales)(const Call *call) { return ref_delayed_scales(call); }
Err CPU_NAME(mark_amax)(const Call *call) { return ref_mark_amax(call); }
Err CPU_NAME(age_marks)(const Call *call) { return ref_age_marks(call); }

/* The call of quantize with an amax that gives the scale. */
static Err quantize_with(const Call *call, Tensor y)
{
    const DType type = call->attr.by.type;
    float amax = (float)tensor_get(&call->in[1], 0) * fp8_format(type).max, scale;
    Call q = *call;
    q.n_out = 2;
    q.out[0] = y;
    q.attr.quantize.type = type;
    q.in[1] = (Tensor){.data = &amax, .dtype = F32, .ndim = 1, .n = {1}, .stride = {1}};
    q.out[1] = (Tensor){.data = &scale, .dtype = F32, .ndim = 1, .n = {1}, .stride = {1}};
    return CPU_NAME(quantize)(&q);
}

Err CPU_NAME(quantize_by_turned)(const Call *call)
{
    return quantize_with(call, tensor_transposed(&call->out[0]));
}

Err CPU_NAME(quantize_by)(const Call *call)
{
    Call amax = *call;
    amax.n_in = amax.n_out = 1;
    amax.out[0] = call->out[1];
    TRY(CPU_NAME(amax)(&amax));
    TRY(quantize_with(call, call->out[0]));
    return call->n_out > 2 ? quantize_with(call, tensor_transposed(&call->out[2])) : OK;
}

static Err in_parts(const Call *call, ByForm form, Kernel make)
{
    Workspace *w;
    TRY(workspace_take(by_scratch_bytes(call), "values before quantization", &w));
    const Err err = by_parts(call, form, w->at, make, CPU_NAME(quantize_by));
    workspace_give(w);
    return err;
}

Err CPU_NAME(rmsnorm_by)(const Call *call) { return in_parts(call, by_rmsnorm, CPU_NAME(rmsnorm)); }
Err CPU_NAME(swiglu_by)(const Call *call) { return in_parts(call, by_swiglu, CPU_NAME(swiglu)); }
Err CPU_NAME(swiglu_dx_by)(const Call *call)
{
    return in_parts(call, by_swiglu_dx, CPU_NAME(swiglu_dx));
}

/* The columns [at, at + n) of one row of blocks, at most a piece. Rows are walked in order, so that
 * blocks of one column are read as fast as those of one row. */
static void quantize_blocks_piece(const Call *call, int64_t row, int64_t at, int64_t n)
{
    _Alignas(64) float buffer[PIECE];
    float most[PIECE] = {0}, inverse[PIECE];
    const Tensor *x = &call->in[0], *y = &call->out[0], *s = &call->out[1];
    const int32_t *size = call->attr.quantize.block;
    const DType type = call->attr.quantize.type;
    const Fp8Format format = fp8_format(type);
    const int64_t first = row * size[0], end = min_i64(first + size[0], x->n[0]);
    const int64_t blocks = blocks_of(n, size[1]);
    for (int64_t i = first; i < end; i++) {
        const float *from = read_piece(tensor_row(x, i), at, n, buffer);
        for (int64_t j = 0; j < n; j++) {
            const float magnitude = fabsf(from[j]);
            float *largest = &most[j / size[1]];
            *largest = magnitude > *largest ? magnitude : *largest; /* false for NaN */
        }
    }
    for (int64_t k = 0; k < blocks; k++) {
        const Fp8Scale scale = fp8_scale(type, most[k]);
        inverse[k] = scale.inverse;
        tensor_set(s, row * s->n[1] + at / size[1] + k, (double)scale.scale);
    }
    for (int64_t i = first; i < end; i++) {
        const float *from = read_piece(tensor_row(x, i), at, n, buffer);
        const RowRef to = tensor_row(y, i);
        for (int64_t j = 0; j < n; j++)
            ((uint8_t *)to.at)[(at + j) * to.stride] =
                fp8_round(format, from[j] * inverse[j / size[1]]);
    }
}

/* One row of blocks. A piece is a whole number of blocks: their sizes divide it. */
static void quantize_blocks_row(const void *work, int64_t row)
{
    const Call *call = work;
    const int64_t width = call->in[0].n[1];
    MUST(PIECE % call->attr.quantize.block[1] == 0, "blocks of %d columns",
         (int)call->attr.quantize.block[1]);
    for (int64_t at = 0; at < width; at += PIECE)
        quantize_blocks_piece(call, row, at, min_i64(width - at, PIECE));
    const Tensor *s = &call->out[1];
    for (int64_t k = blocks_of(width, call->attr.quantize.block[1]); k < s->n[1]; k++)
        tensor_set(s, row * s->n[1] + k, 1); /* of nothing, as on ref */
}

Err CPU_NAME(quantize_blocks)(const Call *call)
{
    const Tensor *s = &call->out[1];
    const int64_t elements = call->in[0].n[1] * call->attr.quantize.block[0];
    run_rows(call->team, s->n[1] ? s->n[0] : 0, elements, quantize_blocks_row, call);
    return OK;
}

/* An operand, and where its f32 values go, row by row. */
typedef struct {
    const Tensor *x, *scale;
    const int32_t *block;
    Tensor to;
    float value[256]; /* of each code */
} WidenedOperand;

/* Scales are dense: a row of them for each row of blocks, or one for all. */
static void widen_row(const void *work, int64_t i)
{
    const WidenedOperand *w = work;
    const int64_t width = w->x->n[1], step = w->x->stride[1], size = w->block[1];
    const uint8_t *x = (const uint8_t *)w->x->data + i * w->x->stride[0];
    const float *s = (const float *)w->scale->data;
    float *to = (float *)w->to.data + i * w->to.stride[0];
    if (w->block[0]) s += i / w->block[0] * w->scale->n[1];
    for (int64_t j = 0; j < width; j++)
        to[j] = w->value[x[j * step]] * s[size == 0 ? 0 : size == 1 ? j : j / size];
}

static void widen(const Call *call, int operand, float *to, Tensor *out)
{
    const Tensor *x = &call->in[operand];
    WidenedOperand w = {
        .x = x,
        .scale = &call->in[2 + operand],
        .block = operand ? call->attr.gemm.b_block : call->attr.gemm.a_block,
        .to = {
            .data = to, .dtype = F32, .ndim = 2, .n = {x->n[0], x->n[1]}, .stride = {x->n[1], 1}}};
    for (int c = 0; c < 256; c++) w.value[c] = fp8_get(x->dtype, (uint8_t)c);
    run_rows(call->team, x->n[0], x->n[1], widen_row, &w);
    *out = w.to;
}

/* Runs a GEMM of f32 on the widened operands. The other operands follow the scales. */
static Err scaled_with(const Call *call, Kernel gemm)
{
    const int64_t a = tensor_count(&call->in[0]), b = tensor_count(&call->in[1]);
    Workspace *w;
    TRY(workspace_take((size_t)(a + b + 32) * sizeof(float), "a GEMM in FP8", &w));
    float *at = w->at;
    Call plain = *call;
    plain.n_in = call->n_in - 2;
    for (int i = 2; i < plain.n_in; i++) plain.in[i] = call->in[2 + i];
    widen(call, 0, at, &plain.in[0]);
    widen(call, 1, at + (a + 15) / 16 * 16, &plain.in[1]);
    const Err err = gemm(&plain);
    workspace_give(w);
    return err;
}

Err CPU_NAME(scaled_gemm)(const Call *call) { return scaled_with(call, CPU_NAME(gemm)); }
Err CPU_NAME(scaled_gemm_add)(const Call *call) { return scaled_with(call, CPU_NAME(gemm_add)); }
