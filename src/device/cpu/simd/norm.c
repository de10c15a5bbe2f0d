/* norm.c -- layernorm and rmsnorm, each row by itself: the row is read from memory once and from
 * the first cache for the sums and the output.
 *
 *   h = (x - mean) rstd,  y = h w + b            rmsnorm: mean = 0, no b
 *
 * One body for both: a norm without a `mean` tensor is an rmsnorm.
 *
 * Squares are f32, so entries beyond 1e19 or so overflow: their rows are done again in f64. */
#include "device/cpu/simd/simd.h"
#include "device/ref/norm.h"

#include <math.h>
#include <stddef.h>

/* Sums of a row are f64 from piece to piece, so wide rows lose nothing. */
static double row_sum(const Tensor *x, int64_t row)
{
    float buffer[PIECE];
    double sum = 0;
    for (int64_t from = 0; from < row_length(x); from += PIECE) {
        const int64_t n = least(row_length(x) - from, PIECE);
        const float *v = read_piece(tensor_row(x, row), from, n, buffer);
        V part = {0};
        for (int64_t i = 0; i < n; i += W) part += v_load_to(v + i, n - i);
        sum += (double)v_sum(part);
    }
    return sum;
}

static double row_squares(const Tensor *x, int64_t row, float mean)
{
    float buffer[PIECE];
    double sum = 0;
    for (int64_t from = 0; from < row_length(x); from += PIECE) {
        const int64_t n = least(row_length(x) - from, PIECE), whole = n - n % W;
        const float *v = read_piece(tensor_row(x, row), from, n, buffer);
        V part = {0};
        for (int64_t i = 0; i < whole; i += W) {
            const V d = v_load(v + i) - mean;
            part += d * d;
        }
        sum += (double)v_sum(part);
        for (int64_t i = whole; i < n; i++) sum += (double)((v[i] - mean) * (v[i] - mean));
    }
    return sum;
}

static void norm_row(const void *work, int64_t row)
{
    const Norm *m = work;
    const int64_t width = row_length(m->x);
    const float mean = m->mean ? (float)(row_sum(m->x, row) / (double)width) : 0;
    const double squares = row_squares(m->x, row, mean);
    if (!isfinite(squares)) {
        ref_norm_row(m, row); /* else rstd = 0 makes zeros, and a model that blows up looks calm */
        return;
    }
    const float rstd = (float)(1 / sqrt(squares / (double)width + m->eps));
    if (m->mean) tensor_set(m->mean, row, (double)mean);
    tensor_set(m->rstd, row, (double)rstd);

    float buffer[4][PIECE];
    for (int64_t from = 0; from < width; from += PIECE) {
        const int64_t n = least(width - from, PIECE);
        const Row to = tensor_row(m->y, row);
        const float *x = read_piece(tensor_row(m->x, row), from, n, buffer[0]);
        const float *w = read_piece(tensor_row(m->w, 0), from, n, buffer[1]);
        const float *b = m->b ? read_piece(tensor_row(m->b, 0), from, n, buffer[2]) : NULL;
        float *y = write_piece(to, from, buffer[3]);
        for (int64_t i = 0; i < n; i += W) {
            const V h = (v_load_to(x + i, n - i) - mean) * rstd, v = v_load_to(w + i, n - i);
            v_store_to(y + i, n - i, b ? h * v + v_load_to(b + i, n - i) : h * v);
        }
        end_piece(to, from, n, y);
    }
}

static void norm_run(const Call *call, Norm m, void (*row)(const void *work, int64_t i))
{
    if (tensor_count(m.x) > 0) run_rows(call->team, row_count(m.x), row_length(m.x), row, &m);
}

Err CPU_NAME(layernorm)(const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    norm_run(call,
             (Norm){.x = &in[0],
                    .w = &in[1],
                    .b = &in[2],
                    .y = &out[0],
                    .mean = &out[1],
                    .rstd = &out[2],
                    .eps = call->attr.norm.eps},
             norm_row);
    return OK;
}

Err CPU_NAME(rmsnorm)(const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    norm_run(
        call,
        (Norm){.x = &in[0], .w = &in[1], .y = &out[0], .rstd = &out[1], .eps = call->attr.norm.eps},
        norm_row);
    return OK;
}
