/* norm.c -- layernorm and rmsnorm, each row by itself, in two sweeps.
 *
 *   h = (x - mean) rstd,  y = h w + b                          rmsnorm: mean = 0, no b
 *   g = dy w,  dx = addend + rstd (g - avg(g) - h avg(g h))    rmsnorm: without avg(g)
 *   dw = sum over rows of dy h,  db = sum over rows of dy
 *
 * One body for both: a norm without a `mean` tensor is an rmsnorm. */
#include "device/ref/norm.h"

#include <math.h>
#include <stddef.h>

enum { ROWS = 8, COLUMNS = 64 }; /* rows of a tile of y and dx; columns of one of dw */

/* Sum over a row of (x - mean)^power. */
static double row_power(const Tensor *x, int64_t row, double mean, int power)
{
    double sum = 0, v[REF_CHUNK];
    for (int64_t from = 0; from < row_length(x); from += REF_CHUNK) {
        const int64_t n = min_i64(row_length(x) - from, REF_CHUNK);
        row_load(tensor_row(x, row), from, n, v);
        for (int64_t i = 0; i < n; i++) sum += power == 1 ? v[i] : (v[i] - mean) * (v[i] - mean);
    }
    return sum;
}

void ref_norm_row(const Norm *m, int64_t row)
{
    const int64_t width = row_length(m->x);
    const double mean = m->mean ? row_power(m->x, row, 0, 1) / (double)width : 0;
    const double rstd = 1 / sqrt(row_power(m->x, row, mean, 2) / (double)width + m->eps);
    if (m->mean) tensor_set(m->mean, row, mean);
    tensor_set(m->rstd, row, rstd);

    double x[REF_CHUNK], w[REF_CHUNK], b[REF_CHUNK] = {0};
    for (int64_t from = 0; from < width; from += REF_CHUNK) {
        const int64_t n = min_i64(width - from, REF_CHUNK);
        row_load(tensor_row(m->x, row), from, n, x);
        row_load(tensor_row(m->w, 0), from, n, w);
        if (m->b) row_load(tensor_row(m->b, 0), from, n, b);
        for (int64_t i = 0; i < n; i++) x[i] = (x[i] - mean) * rstd * w[i] + b[i];
        row_store(tensor_row(m->y, row), from, n, x);
    }
}

static void norm_tile(void *work, int64_t tile)
{
    const Norm *m = work;
    const int64_t end = min_i64((tile + 1) * ROWS, row_count(m->x));
    for (int64_t row = tile * ROWS; row < end; row++) ref_norm_row(m, row);
}

static void norm_run(const Call *call, Norm m, void (*run)(void *work, int64_t tile))
{
    if (tensor_count(m.x) > 0) team_run(call->team, blocks_of(row_count(m.x), ROWS), run, &m);
}

Err ref_layernorm(const Call *call)
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
             norm_tile);
    return OK;
}

Err ref_rmsnorm(const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    norm_run(
        call,
        (Norm){.x = &in[0], .w = &in[1], .y = &out[0], .rstd = &out[1], .eps = call->attr.norm.eps},
        norm_tile);
    return OK;
}

/* g and h of a piece of a row. */
static void load_gh(const Norm *m, int64_t row, int64_t from, int64_t n, double *g, double *h)
{
    const double mean = m->mean ? tensor_get(m->mean, row) : 0, rstd = tensor_get(m->rstd, row);
    double w[REF_CHUNK];
    row_load(tensor_row(m->dy, row), from, n, g);
    row_load(tensor_row(m->w, 0), from, n, w);
    row_load(tensor_row(m->x, row), from, n, h);
    for (int64_t i = 0; i < n; i++) {
        g[i] *= w[i];
        h[i] = (h[i] - mean) * rstd;
    }
}

static void norm_dx_row(const Norm *m, int64_t row)
{
    const int64_t width = row_length(m->x);
    const double rstd = tensor_get(m->rstd, row);
    double sum_g = 0, sum_gh = 0, g[REF_CHUNK], h[REF_CHUNK];
    for (int64_t from = 0; from < width; from += REF_CHUNK) {
        const int64_t n = min_i64(width - from, REF_CHUNK);
        load_gh(m, row, from, n, g, h);
        for (int64_t i = 0; i < n; i++) {
            sum_g += g[i];
            sum_gh += g[i] * h[i];
        }
    }
    const double avg_g = m->mean ? sum_g / (double)width : 0, avg_gh = sum_gh / (double)width;
    double addend[REF_CHUNK] = {0};
    for (int64_t from = 0; from < width; from += REF_CHUNK) {
        const int64_t n = min_i64(width - from, REF_CHUNK);
        load_gh(m, row, from, n, g, h);
        if (m->addend) row_load(tensor_row(m->addend, row), from, n, addend);
        for (int64_t i = 0; i < n; i++) g[i] = addend[i] + rstd * (g[i] - avg_g - h[i] * avg_gh);
        row_store(tensor_row(m->y, row), from, n, g);
    }
}

static void norm_dx_tile(void *work, int64_t tile)
{
    const Norm *m = work;
    const int64_t end = min_i64((tile + 1) * ROWS, row_count(m->x));
    for (int64_t row = tile * ROWS; row < end; row++) norm_dx_row(m, row);
}

/* A block of columns of dw and db, over all rows. */
static void norm_dw_tile(void *work, int64_t tile)
{
    const Norm *m = work;
    const int64_t column = tile * COLUMNS, n = min_i64(row_length(m->x) - column, COLUMNS);
    double dw[COLUMNS] = {0}, db[COLUMNS] = {0}, g[COLUMNS], v[COLUMNS];
    for (int64_t row = 0; row < row_count(m->x); row++) {
        const double mean = m->mean ? tensor_get(m->mean, row) : 0, rstd = tensor_get(m->rstd, row);
        row_load(tensor_row(m->dy, row), column, n, g);
        row_load(tensor_row(m->x, row), column, n, v);
        for (int64_t i = 0; i < n; i++) {
            dw[i] += g[i] * (v[i] - mean) * rstd;
            db[i] += g[i];
        }
    }
    row_keep(tensor_row(m->dw, 0), column, n, m->keep_dw, dw);
    if (m->db) row_keep(tensor_row(m->db, 0), column, n, m->keep_db, db);
}

/* dw comes first: dx may overwrite dy. */
static Err norm_back(const Call *call, Norm m)
{
    const int64_t columns = blocks_of(row_length(m.x), COLUMNS);
    if (m.dw && columns > 0) team_run(call->team, columns, norm_dw_tile, &m);
    if (m.y) norm_run(call, m, norm_dx_tile);
    return OK;
}

Err ref_layernorm_dx(const Call *call) { return norm_back(call, norm_of_dx(call, true)); }
Err ref_layernorm_dw(const Call *call) { return norm_back(call, norm_of_dw(call, true)); }
Err ref_layernorm_back(const Call *call)
{
    TRY(norm_sum_addend(call, ref_sum_rows));
    return norm_back(call, norm_of_back(call, true));
}

Err ref_rmsnorm_dx(const Call *call) { return norm_back(call, norm_of_dx(call, false)); }
Err ref_rmsnorm_dw(const Call *call) { return norm_back(call, norm_of_dw(call, false)); }
Err ref_rmsnorm_back(const Call *call) { return norm_back(call, norm_of_back(call, false)); }
