/* modulate.c -- rows by the vectors of their clip (device/ref/modulate.c has the formulas), and the
 * squared error of rows.
 *
 * Rows are floats in pieces; sums over a row are f64 between pieces. Sums over the rows of a clip
 * are f32 for RUN rows, then f64 while the clip is the same: tokens of a clip mostly follow each
 * other. */
#include "device/cpu/simd/simd.h"
#include "device/ref/modulate.h"

#include <math.h>

enum { COLUMNS = 64, RUN = 64 };

static const float *clip_piece(const Call *call, int vectors, int64_t clip, int64_t from, int64_t n,
                               float *buffer)
{
    return read_piece(tensor_row(&call->in[vectors], clip), from, n, buffer);
}

/* The sum over a row of (x - mean)^power. */
static double row_power(const Tensor *x, int64_t t, float mean, int power)
{
    _Alignas(64) float buffer[PIECE];
    double all = 0;
    for (int64_t from = 0; from < x->n[1]; from += PIECE) {
        const int64_t n = min_i64(x->n[1] - from, PIECE);
        const float *v = read_piece(tensor_row(x, t), from, n, buffer);
        V sum = {0};
        int64_t i = 0;
        for (; i + W <= n; i += W) {
            const V d = v_load(v + i) - mean;
            sum += power == 1 ? d : d * d;
        }
        all += (double)v_sum(sum);
        for (; i < n; i++)
            all += (double)(power == 1 ? v[i] - mean : (v[i] - mean) * (v[i] - mean));
    }
    return all;
}

static void modulate_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const double width = (double)x->n[1];
    const int64_t clip = int_at(&call->in[3], t);
    const float mean = (float)(row_power(x, t, 0, 1) / width);
    const float rstd = (float)(1 / sqrt(row_power(x, t, mean, 2) / width + call->attr.norm.eps));
    _Alignas(64) float buffer[3][PIECE], out[PIECE];
    stat_set(&call->out[1], t, mean);
    stat_set(&call->out[2], t, rstd);
    for (int64_t from = 0; from < x->n[1]; from += PIECE) {
        const int64_t n = min_i64(x->n[1] - from, PIECE);
        const float *v = read_piece(tensor_row(x, t), from, n, buffer[0]);
        const float *scale = clip_piece(call, 1, clip, from, n, buffer[1]);
        const float *shift = clip_piece(call, 2, clip, from, n, buffer[2]);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(out + i, n - i,
                       (v_load_to(v + i, n - i) - mean) * rstd * (1 + v_load_to(scale + i, n - i)) +
                           v_load_to(shift + i, n - i));
        store_piece(tensor_row(y, t), from, n, out);
    }
}

Err CPU_NAME(modulate)(const Call *call)
{
    run_rows(call->team, call->out[0].n[0], 3 * call->out[0].n[1], modulate_row, call);
    return OK;
}

/* g and h of a piece of a row. */
static void load_gh(const Call *call, int64_t t, int64_t from, int64_t n, float *g, float *h)
{
    _Alignas(64) float buffer[3][PIECE];
    const float mean = stat_get(&call->in[4], t), rstd = stat_get(&call->in[5], t);
    const float *dy = read_piece(tensor_row(&call->in[0], t), from, n, buffer[0]);
    const float *x = read_piece(tensor_row(&call->in[1], t), from, n, buffer[1]);
    const float *scale = clip_piece(call, 2, int_at(&call->in[3], t), from, n, buffer[2]);
    for (int64_t i = 0; i < n; i += W) {
        v_store_to(g + i, n - i, v_load_to(dy + i, n - i) * (1 + v_load_to(scale + i, n - i)));
        v_store_to(h + i, n - i, (v_load_to(x + i, n - i) - mean) * rstd);
    }
}

static void modulate_dx_row(const void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *dx = &call->out[0];
    const double width = (double)dx->n[1];
    const float rstd = stat_get(&call->in[5], t);
    _Alignas(64) float g[PIECE], h[PIECE];
    double sum_g = 0, sum_gh = 0;
    for (int64_t from = 0; from < dx->n[1]; from += PIECE) {
        const int64_t n = min_i64(dx->n[1] - from, PIECE);
        V some = {0}, product = {0};
        load_gh(call, t, from, n, g, h);
        for (int64_t i = 0; i < n; i += W) {
            some += v_load_to(g + i, n - i);
            product += v_load_to(g + i, n - i) * v_load_to(h + i, n - i);
        }
        sum_g += (double)v_sum(some);
        sum_gh += (double)v_sum(product);
    }
    const float avg_g = (float)(sum_g / width), avg_gh = (float)(sum_gh / width);
    for (int64_t from = 0; from < dx->n[1]; from += PIECE) {
        const int64_t n = min_i64(dx->n[1] - from, PIECE);
        load_gh(call, t, from, n, g, h);
        for (int64_t i = 0; i < n; i += W)
            v_store_to(g + i, n - i,
                       rstd * (v_load_to(g + i, n - i) - avg_g - v_load_to(h + i, n - i) * avg_gh));
        store_piece(tensor_row(dx, t), from, n, g);
    }
}

Err CPU_NAME(modulate_dx)(const Call *call)
{
    run_rows(call->team, call->out[0].n[0], 4 * call->out[0].n[1], modulate_dx_row, call);
    return OK;
}

/* Sums over rows of one clip that follow each other, of a block of columns. */
typedef struct {
    _Alignas(64) float product[COLUMNS], plain[COLUMNS];
    double all_product[COLUMNS], all_plain[COLUMNS];
    int64_t rows;
} ClipRun;

static void flush_run(ClipRun *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        r->all_product[i] += (double)r->product[i];
        r->all_plain[i] += (double)r->plain[i];
        r->product[i] = r->plain[i] = 0;
    }
    r->rows = 0;
}

/* Adds the sums so far to the vectors of their clip. */
static void end_clip(const ClipSums *s, ClipRun *r, int64_t clip, int64_t column, int64_t n)
{
    float product[COLUMNS], plain[COLUMNS];
    flush_run(r, n);
    for (int64_t i = 0; i < n; i++) {
        product[i] = (float)r->all_product[i];
        plain[i] = (float)r->all_plain[i];
        r->all_product[i] = r->all_plain[i] = 0;
    }
    keep_piece(tensor_row(s->product, clip), column, n, 1, product);
    if (s->plain) keep_piece(tensor_row(s->plain, clip), column, n, 1, plain);
}

static void add_row(const ClipSums *s, ClipRun *r, int64_t t, int64_t column, int64_t n)
{
    _Alignas(64) float buffer[2][PIECE];
    const float mean = s->mean ? stat_get(s->mean, t) : 0,
                rstd = s->rstd ? stat_get(s->rstd, t) : 1;
    const float *dy = read_piece(tensor_row(s->dy, t), column, n, buffer[0]);
    const float *x = read_piece(tensor_row(s->x, t), column, n, buffer[1]);
    for (int64_t i = 0; i < n; i += W) {
        const V g = v_load_to(dy + i, n - i), v = v_load_to(x + i, n - i);
        v_store_to(r->product + i, n - i, v_load_to(r->product + i, n - i) + g * (v - mean) * rstd);
        v_store_to(r->plain + i, n - i, v_load_to(r->plain + i, n - i) + g);
    }
    if (++r->rows == RUN) flush_run(r, n);
}

/* The outputs start from keep times their old content, which is not read if keep is 0. */
static void start_piece(RowRef row, int64_t column, int64_t n, double keep)
{
    _Alignas(64) float v[COLUMNS] = {0};
    if (keep != 0) load_piece(row, column, n, v);
    for (int64_t i = 0; i < n; i++) v[i] *= (float)keep;
    store_piece(row, column, n, v);
}

static void clip_sums_tile(void *work, int64_t tile)
{
    const ClipSums *s = work;
    const int64_t column = tile * COLUMNS, n = min_i64(s->product->n[1] - column, COLUMNS);
    ClipRun run = {.rows = 0};
    int64_t clip = -1;
    for (int64_t b = 0; b < s->product->n[0]; b++) {
        start_piece(tensor_row(s->product, b), column, n, s->keep_product);
        if (s->plain) start_piece(tensor_row(s->plain, b), column, n, s->keep_plain);
    }
    for (int64_t t = 0; t < s->dy->n[0]; t++) {
        if (int_at(s->clip, t) != clip && clip >= 0) end_clip(s, &run, clip, column, n);
        clip = int_at(s->clip, t);
        add_row(s, &run, t, column, n);
    }
    if (clip >= 0) end_clip(s, &run, clip, column, n);
}

static Err clip_sums(const Call *call, ClipSums s)
{
    const int64_t blocks = blocks_of(s.product->n[1], COLUMNS);
    if (blocks > 0) team_run(call->team, blocks, clip_sums_tile, &s);
    return OK;
}

Err CPU_NAME(modulate_dw)(const Call *call) { return clip_sums(call, clip_sums_of_scale(call)); }
Err CPU_NAME(gate_add_dw)(const Call *call) { return clip_sums(call, clip_sums_of_gate(call)); }

static void gate_add_row(const void *work, int64_t t)
{
    static const float zeros[PIECE];
    const Call *call = work;
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t clip = int_at(&call->in[2], t);
    _Alignas(64) float buffer[3][PIECE], out[PIECE];
    for (int64_t from = 0; from < y->n[1]; from += PIECE) {
        const int64_t n = min_i64(y->n[1] - from, PIECE);
        const float *v = read_piece(tensor_row(x, t), from, n, buffer[0]);
        const float *gate = clip_piece(call, 1, clip, from, n, buffer[1]);
        const float *residual =
            call->n_in > 3 ? read_piece(tensor_row(&call->in[3], t), from, n, buffer[2]) : zeros;
        for (int64_t i = 0; i < n; i += W)
            v_store_to(out + i, n - i,
                       v_load_to(gate + i, n - i) * v_load_to(v + i, n - i) +
                           v_load_to(residual + i, n - i));
        store_piece(tensor_row(y, t), from, n, out);
    }
}

Err CPU_NAME(gate_add)(const Call *call)
{
    run_rows(call->team, call->out[0].n[0], 2 * call->out[0].n[1], gate_add_row, call);
    return OK;
}

/* Few elements and rows of few channels: as on device ref. */
Err CPU_NAME(sinusoid)(const Call *call) { return ref_sinusoid(call); }
Err CPU_NAME(square_loss)(const Call *call) { return ref_square_loss(call); }
Err CPU_NAME(square_loss_dx)(const Call *call) { return ref_square_loss_dx(call); }
