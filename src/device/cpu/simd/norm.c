/* norm.c -- layernorm and rmsnorm, each row by itself: the row is read from memory once, and from the
 * first cache, as floats, for the sums and the output.
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

enum { SPAN = 2048 };

typedef struct {
    Norm m;
    int64_t rows, width, per_tile;
} Forward;

/* Elements [from, from + n) of a row and of the weights, as floats. */
typedef struct {
    const float *x, *w, *b;
    int64_t row, from, n; /* row -1: nothing is read yet */
    _Alignas(64) float buffer[3][SPAN];
} Operands;

/* Reads what is not there already: a row that fits is read once, w and b once a tile. */
static void read_span(const Forward *f, int64_t row, int64_t from, Operands *o)
{
    const bool same_w = o->row >= 0 && o->from == from;
    if (o->row == row && o->from == from) return;
    o->n = least(f->width - from, SPAN);
    o->x = read_piece(tensor_row(f->m.x, row), from, o->n, o->buffer[0]);
    if (!same_w) o->w = read_piece(tensor_row(f->m.w, 0), from, o->n, o->buffer[1]);
    if (!same_w && f->m.b) o->b = read_piece(tensor_row(f->m.b, 0), from, o->n, o->buffer[2]);
    o->row = row;
    o->from = from;
}

/* Four sums side by side hide the adder's latency. */
static double span_sum(const float *x, int64_t n)
{
    V s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) s[k] += v_load(x + i + k * W);
    for (; i < n; i += W) s[0] += v_load_to(x + i, n - i);
    return (double)v_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static double span_squares(const float *x, int64_t n, float mean)
{
    V s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) {
            const V d = v_load(x + i + k * W) - mean;
            s[k] += d * d;
        }
    for (; i + W <= n; i += W) {
        const V d = v_load(x + i) - mean;
        s[0] += d * d;
    }
    double sum = (double)v_sum((s[0] + s[1]) + (s[2] + s[3]));
    for (; i < n; i++) sum += (double)((x[i] - mean) * (x[i] - mean));
    return sum;
}

/* Sums of a row are f64 from span to span, so wide rows lose nothing. */
static double row_sum(const Forward *f, int64_t row, Operands *o)
{
    double sum = 0;
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        sum += span_sum(o->x, o->n);
    }
    return sum;
}

static double row_squares(const Forward *f, int64_t row, float mean, Operands *o)
{
    double sum = 0;
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        sum += span_squares(o->x, o->n, mean);
    }
    return sum;
}

typedef struct {
    const float *x, *w, *b;
    float mean, rstd;
} Affine;

static inline V affine(const Affine *a, int64_t i, int64_t n)
{
    const V x = v_load_to(a->x + i, n), w = v_load_to(a->w + i, n);
    const V b = a->b ? v_load_to(a->b + i, n) : v_set(0);
    return (x - a->mean) * a->rstd * w + b;
}

/* As many as there are pairs of vectors. */
EACH_FORM int64_t write_pairs(Form form, void *y, Affine a, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        v_store_pair_as(form, y, i, affine(&a, i, W), affine(&a, i + W, W));
    return i;
}

static void write_span(const Forward *f, const Operands *o, float mean, float rstd)
{
    const Affine a = {o->x, o->w, f->m.b ? o->b : NULL, mean, rstd};
    const Row to = tensor_row(f->m.y, o->row);
    _Alignas(64) float rest[SPAN];
    int64_t done = 0;
    const Form form = form_of(to);
    if (form == AS_F32) done = write_pairs(AS_F32, piece_at(to, o->from), a, o->n);
    if (form == AS_BF16) done = write_pairs(AS_BF16, piece_at(to, o->from), a, o->n);
    if (form == AS_BF16_UNIT) done = write_pairs(AS_BF16_UNIT, piece_at(to, o->from), a, o->n);
    for (int64_t i = done; i < o->n; i += W)
        v_store_to(rest + i - done, o->n - i, affine(&a, i, o->n - i));
    store_piece(to, o->from + done, o->n - done, rest);
}

static void norm_row(const Forward *f, int64_t row, Operands *o)
{
    const Norm *m = &f->m;
    const float mean = m->mean ? (float)(row_sum(f, row, o) / (double)f->width) : 0;
    const double squares = row_squares(f, row, mean, o);
    if (!isfinite(squares)) {
        ref_norm_row(m, row); /* else rstd = 0 makes zeros, and a model that blows up looks calm */
        return;
    }
    const float rstd = (float)(1 / sqrt(squares / (double)f->width + m->eps));
    if (m->mean) stat_set(m->mean, row, mean);
    stat_set(m->rstd, row, rstd);
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        write_span(f, o, mean, rstd);
    }
}

static void norm_tile(void *work, int64_t tile)
{
    const Forward *f = work;
    const int64_t end = least((tile + 1) * f->per_tile, f->rows);
    Operands o;
    o.row = -1;
    for (int64_t row = tile * f->per_tile; row < end; row++) norm_row(f, row, &o);
}

static Err norm_run(const Call *call, Norm m)
{
    Forward f = {.m = m, .rows = row_count(m.x), .width = row_length(m.x)};
    if (f.width == 0 || f.rows == 0) return OK;
    f.per_tile = most(TILE_WORK / f.width, 1);
    team_run(call->team, blocks_of(f.rows, f.per_tile), norm_tile, &f);
    return OK;
}

Err CPU_NAME(layernorm)(const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    return norm_run(call, (Norm){.x = &in[0],
                                 .w = &in[1],
                                 .b = &in[2],
                                 .y = &out[0],
                                 .mean = &out[1],
                                 .rstd = &out[2],
                                 .eps = call->attr.norm.eps});
}

Err CPU_NAME(rmsnorm)(const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    return norm_run(
        call,
        (Norm){
            .x = &in[0], .w = &in[1], .y = &out[0], .rstd = &out[1], .eps = call->attr.norm.eps});
}
