/* modulate.c -- rows by the vectors of their clip: scale and shift of a normalized row, and gates.
 *
 *   h = (x - mean) rstd,  y = h (1 + scale) + shift           scale, shift, gate: row clip[t]
 *   g = dy (1 + scale),   dx = rstd (g - avg(g) - h avg(g h))
 *   dscale = sum of dy h, dshift = sum of dy, dgate = sum of dy x      over the tokens of a clip */
#include "device/ref/modulate.h"

#include <math.h>
#include <stdbool.h>

enum { ROWS = 8, COLUMNS = 64 }; /* rows of a tile; columns of one of the sums over rows */

static void row_statistics(const Call *call, int64_t t, double *mean, double *rstd)
{
    const Tensor *x = &call->in[0];
    const double width = (double)x->n[1];
    double sum = 0, square = 0, v[REF_CHUNK];
    for (int pass = 0; pass < 2; pass++)
        for (int64_t from = 0; from < x->n[1]; from += REF_CHUNK) {
            const int64_t n = min_i64(x->n[1] - from, REF_CHUNK);
            row_load(tensor_row(x, t), from, n, v);
            for (int64_t i = 0; i < n && pass == 0; i++) sum += v[i];
            for (int64_t i = 0; i < n && pass == 1; i++)
                square += (v[i] - sum / width) * (v[i] - sum / width);
        }
    *mean = sum / width;
    *rstd = 1 / sqrt(square / width + call->attr.norm.eps);
}

static void modulate_row(const Call *call, int64_t t)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t clip = int_at(&call->in[3], t);
    double mean, rstd, v[REF_CHUNK], scale[REF_CHUNK], shift[REF_CHUNK];
    row_statistics(call, t, &mean, &rstd);
    tensor_set(&call->out[1], t, mean);
    tensor_set(&call->out[2], t, rstd);
    for (int64_t from = 0; from < x->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(x->n[1] - from, REF_CHUNK);
        row_load(tensor_row(x, t), from, n, v);
        row_load(tensor_row(&call->in[1], clip), from, n, scale);
        row_load(tensor_row(&call->in[2], clip), from, n, shift);
        for (int64_t i = 0; i < n; i++) v[i] = (v[i] - mean) * rstd * (1 + scale[i]) + shift[i];
        row_store(tensor_row(y, t), from, n, v);
    }
}

static void modulate_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const int64_t end = min_i64((tile + 1) * ROWS, call->out[0].n[0]);
    for (int64_t t = tile * ROWS; t < end; t++) modulate_row(call, t);
}

Err ref_modulate(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], ROWS), modulate_tile);
    return OK;
}

/* g and h of a piece of a row. */
static void load_gh(const Call *call, int64_t t, int64_t from, int64_t n, double *g, double *h)
{
    const double mean = tensor_get(&call->in[4], t), rstd = tensor_get(&call->in[5], t);
    double scale[REF_CHUNK];
    row_load(tensor_row(&call->in[0], t), from, n, g);
    row_load(tensor_row(&call->in[1], t), from, n, h);
    row_load(tensor_row(&call->in[2], int_at(&call->in[3], t)), from, n, scale);
    for (int64_t i = 0; i < n; i++) {
        g[i] *= 1 + scale[i];
        h[i] = (h[i] - mean) * rstd;
    }
}

static void modulate_dx_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *dx = &call->out[0];
    const double width = (double)dx->n[1], rstd = tensor_get(&call->in[5], t);
    double sum_g = 0, sum_gh = 0, g[REF_CHUNK], h[REF_CHUNK];
    for (int64_t from = 0; from < dx->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(dx->n[1] - from, REF_CHUNK);
        load_gh(call, t, from, n, g, h);
        for (int64_t i = 0; i < n; i++) {
            sum_g += g[i];
            sum_gh += g[i] * h[i];
        }
    }
    for (int64_t from = 0; from < dx->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(dx->n[1] - from, REF_CHUNK);
        load_gh(call, t, from, n, g, h);
        for (int64_t i = 0; i < n; i++)
            g[i] = rstd * (g[i] - sum_g / width - h[i] * sum_gh / width);
        row_store(tensor_row(dx, t), from, n, g);
    }
}

Err ref_modulate_dx(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], modulate_dx_tile);
    return OK;
}

static void clip_sums_tile(void *work, int64_t tile)
{
    const ClipSums *s = work;
    const int64_t clip = tile / s->blocks, column = tile % s->blocks * COLUMNS;
    const int64_t n = min_i64(s->dy->n[1] - column, COLUMNS);
    double product[COLUMNS] = {0}, plain[COLUMNS] = {0}, g[COLUMNS], v[COLUMNS];
    for (int64_t t = 0; t < s->dy->n[0]; t++) {
        if (int_at(s->clip, t) != clip) continue;
        const double mean = s->mean ? tensor_get(s->mean, t) : 0;
        const double rstd = s->rstd ? tensor_get(s->rstd, t) : 1;
        row_load(tensor_row(s->dy, t), column, n, g);
        row_load(tensor_row(s->x, t), column, n, v);
        for (int64_t i = 0; i < n; i++) {
            product[i] += g[i] * (v[i] - mean) * rstd;
            plain[i] += g[i];
        }
    }
    row_keep(tensor_row(s->product, clip), column, n, s->keep_product, product);
    if (s->plain) row_keep(tensor_row(s->plain, clip), column, n, s->keep_plain, plain);
}

static Err clip_sums(const Call *call, ClipSums s)
{
    s.blocks = blocks_of(s.product->n[1], COLUMNS);
    const int64_t tiles = s.blocks * s.product->n[0];
    if (tiles > 0) team_run(call->team, tiles, clip_sums_tile, &s);
    return OK;
}

Err ref_modulate_dw(const Call *call) { return clip_sums(call, clip_sums_of_scale(call)); }
Err ref_gate_add_dw(const Call *call) { return clip_sums(call, clip_sums_of_gate(call)); }

static void gate_add_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t clip = int_at(&call->in[2], t);
    double v[REF_CHUNK], gate[REF_CHUNK], residual[REF_CHUNK] = {0};
    for (int64_t from = 0; from < y->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(y->n[1] - from, REF_CHUNK);
        row_load(tensor_row(x, t), from, n, v);
        row_load(tensor_row(&call->in[1], clip), from, n, gate);
        if (call->n_in > 3) row_load(tensor_row(&call->in[3], t), from, n, residual);
        for (int64_t i = 0; i < n; i++) v[i] = residual[i] + gate[i] * v[i];
        row_store(tensor_row(y, t), from, n, v);
    }
}

Err ref_gate_add(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], gate_add_tile);
    return OK;
}
