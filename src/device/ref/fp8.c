/* fp8.c -- quantization: the largest magnitude, values of 8 bits, and their scales.
 *
 *     x --amax--> m --(maximum over ranks)--> m
 *     x, m --quantize--> y = round(x * (largest / m)), s = m / largest
 *
 * The product is f32 on every device, so that all round the same number. */
#include "base/fp8.h"
#include "device/ref/ref.h"

#include <math.h>

double fp8_scale_at(const Tensor *s, const int32_t block[2], int64_t row, int64_t column)
{
    if (s->ndim == 1) return tensor_get(s, 0);
    return tensor_get(s, row / block[0] * s->n[1] + column / block[1]);
}

/* The elements [row, row + n[0]) x [column, column + n[1]) of a matrix. */
typedef struct {
    int64_t row, column, n[2];
} MatrixBlock;

static double largest_in(const Tensor *x, MatrixBlock b)
{
    double most = 0, part[REF_CHUNK];
    for (int64_t i = 0; i < b.n[0]; i++)
        for (int64_t from = 0; from < b.n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(b.n[1] - from, REF_CHUNK);
            row_load(tensor_row(x, b.row + i), b.column + from, n, part);
            for (int64_t j = 0; j < n; j++) most = fmax(most, fabs(part[j]));
        }
    return most;
}

static void quantize_block(const Call *call, MatrixBlock b, Fp8Scale s)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    double part[REF_CHUNK];
    for (int64_t i = 0; i < b.n[0]; i++)
        for (int64_t from = 0; from < b.n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(b.n[1] - from, REF_CHUNK);
            row_load(tensor_row(x, b.row + i), b.column + from, n, part);
            for (int64_t j = 0; j < n; j++) part[j] = (double)((float)part[j] * s.inverse);
            row_store(tensor_row(y, b.row + i), b.column + from, n, part);
        }
}

Err ref_amax(const Call *call)
{
    const Tensor *x = &call->in[0];
    tensor_set(&call->out[0], 0, largest_in(x, (MatrixBlock){0, 0, {x->n[0], x->n[1]}}));
    return OK;
}

typedef struct {
    const Call *call;
    Fp8Scale scale;
} ScaledRows;

static void quantize_tile(void *work, int64_t tile)
{
    const ScaledRows *rows = work;
    quantize_block(rows->call, (MatrixBlock){tile, 0, {1, rows->call->in[0].n[1]}}, rows->scale);
}

static void quantize_rows(const Call *call, Fp8Scale s)
{
    ScaledRows rows = {call, s};
    if (call->in[0].n[0] > 0) team_run(call->team, call->in[0].n[0], quantize_tile, &rows);
}

Err ref_quantize(const Call *call)
{
    const Fp8Scale s = fp8_scale(call->attr.quantize.type, (float)tensor_get(&call->in[1], 0));
    quantize_rows(call, s);
    tensor_set(&call->out[1], 0, (double)s.scale);
    return OK;
}

Err ref_quantize_turned(const Call *call)
{
    Call p = *call;
    p.out[0] = tensor_transposed(&call->out[0]);
    return ref_quantize(&p);
}

Err ref_quantize_both(const Call *call)
{
    const Call z = call_quantize_turned(call);
    TRY(ref_quantize(call));
    return ref_quantize_turned(&z);
}

static void blocks_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *s = &call->out[1];
    const int32_t *size = call->attr.quantize.block;
    MatrixBlock b = {tile / s->n[1] * size[0], tile % s->n[1] * size[1], {0}};
    b.n[0] = min_i64(x->n[0] - b.row, size[0]);
    b.n[1] = min_i64(x->n[1] - b.column, size[1]);
    const Fp8Scale scale = fp8_scale(call->attr.quantize.type, (float)largest_in(x, b));
    quantize_block(call, b, scale);
    tensor_set(s, tile, (double)scale.scale);
}

Err ref_quantize_blocks(const Call *call)
{
    ref_tiles(call, tensor_count(&call->out[1]), blocks_tile);
    return OK;
}
