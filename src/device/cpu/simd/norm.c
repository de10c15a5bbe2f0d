/* norm.c -- layernorm and rmsnorm. Each row is read from memory once; the later passes over it read
 * floats from L1.
 *
 *     h = (x - mean) rstd,  y = h w + b            rmsnorm: mean = 0, no b
 *
 * One implementation serves both: a norm without a `mean` tensor is an rmsnorm.
 *
 * Reducing the vector sums of a row to one number, and the square root that follows, takes as long
 * as the sums themselves. So rows that are read in place are processed ROWS_AT_ONCE together: sums,
 * then squares, then outputs. The latency of one row's reduction overlaps with the other's. More
 * than two rows are slower when rows come from memory. The order of additions is the same.
 *
 * Squares are f32 and overflow for entries beyond about 1e19. Such rows are recomputed in f64. */
#include "device/cpu/simd/simd.h"
#include "device/ref/norm.h"

#include <math.h>
#include <stddef.h>

enum { SPAN = 2048, ROWS_AT_ONCE = 2 };

typedef struct {
    Norm m;
    int64_t rows, width, per_tile;
    ElementForm form; /* of rows that are read in place; AS_OTHER: rows are copied */
} NormForward;

/* Elements [from, from + n) of a row and of the weights, as floats. */
typedef struct {
    const float *x, *w, *b;
    int64_t row, from, n; /* row -1: nothing is read yet */
    _Alignas(64) float buffer[3][SPAN];
} NormOperands;

/* Reads the span unless it is loaded already: a row that fits is read once, w and b once per
 * tile. */
static void read_span(const NormForward *f, int64_t row, int64_t from, NormOperands *o)
{
    static const float zeros[SPAN]; /* b of an rmsnorm: avoids a branch between product and sum */
    const bool same_w = o->row >= 0 && o->from == from;
    if (o->row == row && o->from == from) return;
    o->n = min_i64(f->width - from, SPAN);
    o->x = read_piece(tensor_row(f->m.x, row), from, o->n, o->buffer[0]);
    if (!same_w) o->w = read_piece(tensor_row(f->m.w, 0), from, o->n, o->buffer[1]);
    if (!same_w)
        o->b = f->m.b ? read_piece(tensor_row(f->m.b, 0), from, o->n, o->buffer[2]) : zeros;
    o->row = row;
    o->from = from;
}

/* Four independent sums hide the latency of additions. bf16: n is a multiple of W. */
EACH_FORM double span_sum(ElementForm form, const void *x, int64_t n)
{
    V s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) s[k] += v_load_as(form, x, i + k * W);
    for (; i + W <= n; i += W) s[0] += v_load_as(form, x, i);
    if (i < n) s[0] += v_load_to((const float *)x + i, n - i);
    return (double)v_sum((s[0] + s[1]) + (s[2] + s[3]));
}

EACH_FORM double span_squares(ElementForm form, const void *x, int64_t n, float mean)
{
    V s[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
        for (int k = 0; k < 4; k++) {
            const V d = v_load_as(form, x, i + k * W) - mean;
            s[k] += d * d;
        }
    for (; i + W <= n; i += W) {
        const V d = v_load_as(form, x, i) - mean;
        s[0] += d * d;
    }
    double sum = (double)v_sum((s[0] + s[1]) + (s[2] + s[3]));
    for (const float *at = x; i < n; i++) sum += (double)((at[i] - mean) * (at[i] - mean));
    return sum;
}

/* f64 between spans, so wide rows lose no accuracy. */
static double row_sum(const NormForward *f, int64_t row, NormOperands *o)
{
    double sum = 0;
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        sum += span_sum(AS_F32, o->x, o->n);
    }
    return sum;
}

static double row_squares(const NormForward *f, int64_t row, float mean, NormOperands *o)
{
    double sum = 0;
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        sum += span_squares(AS_F32, o->x, o->n, mean);
    }
    return sum;
}

typedef struct {
    const void *x;
    const float *w, *b;
    int64_t n;
    float mean, rstd;
} NormAffine;

/* n: elements left, for floats; bf16 always has full vectors. */
EACH_FORM V affine(ElementForm form, const NormAffine *a, int64_t i, int64_t n)
{
    const V x = form == AS_F32 ? v_load_to((const float *)a->x + i, n) : v_load_as(form, a->x, i);
    const V w = v_load_to(a->w + i, n), b = v_load_to(a->b + i, n);
    return (x - a->mean) * a->rstd * w + b;
}

/* Writes full pairs of vectors; returns the number of elements written. */
EACH_FORM int64_t write_pairs(ElementForm form, ElementForm to, void *y, const NormAffine *a)
{
    int64_t i = 0;
    for (; i + 2 * W <= a->n; i += 2 * W)
        v_store_pair_as(to, y, i, affine(form, a, i, W), affine(form, a, i + W, W));
    return i;
}

EACH_FORM int64_t write_to(ElementForm form, ElementForm to, void *y, const NormAffine *a)
{
    if (to == AS_F32) return write_pairs(form, AS_F32, y, a);
    if (to == AS_BF16) return write_pairs(form, AS_BF16, y, a);
    return to == AS_BF16_HW ? write_pairs(form, AS_BF16_HW, y, a) : 0;
}

/* Writes elements of a row of y, from `from` on. Elements that cannot be stored directly are
 * computed by the same loop into `rest`: in another loop the compiler might contract other FMAs and
 * change bits. */
EACH_FORM void write_span(ElementForm form, RowRef y, int64_t from, const NormAffine *a)
{
    _Alignas(64) float rest[SPAN];
    const int64_t done = write_to(form, form_of(y), piece_at(y, from), a);
    if (done == a->n) return;
    int64_t i = done == 0 ? write_pairs(form, AS_F32, rest, a) : done;
    for (; i < a->n; i += W) v_store_to(rest + i, a->n - i, affine(form, a, i, a->n - i));
    store_piece(y, from + done, a->n - done, rest + done);
}

/* Stores mean and rstd. False if the squares overflowed: rstd = 0 would produce zeros and hide a
 * diverged model. */
static bool keep_stats(const NormForward *f, int64_t row, float mean, double squares, float *rstd)
{
    if (!isfinite(squares)) return false;
    *rstd = (float)(1 / sqrt(squares / (double)f->width + f->m.eps));
    if (f->m.mean) stat_set(f->m.mean, row, mean);
    stat_set(f->m.rstd, row, *rstd);
    return true;
}

static void norm_row(const NormForward *f, int64_t row, NormOperands *o)
{
    const Norm *m = &f->m;
    const float mean = m->mean ? (float)(row_sum(f, row, o) / (double)f->width) : 0;
    float rstd;
    if (!keep_stats(f, row, mean, row_squares(f, row, mean, o), &rstd)) {
        ref_norm_row(m, row);
        return;
    }
    for (int64_t from = 0; from < f->width; from += SPAN) {
        read_span(f, row, from, o);
        write_span(AS_F32, tensor_row(m->y, row), from,
                   &(NormAffine){o->x, o->w, o->b, o->n, mean, rstd});
    }
}

/* ROWS_AT_ONCE rows from `row` on, in place; o contains w and b. */
EACH_FORM void norm_rows(ElementForm form, const NormForward *f, int64_t row, const NormOperands *o)
{
    const int64_t n = f->width;
    NormAffine a[ROWS_AT_ONCE];
    double squares[ROWS_AT_ONCE];
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
        a[k] = (NormAffine){tensor_row(f->m.x, row + k).at, o->w, o->b, n, 0, 0};
        if (f->m.mean) a[k].mean = (float)(span_sum(form, a[k].x, n) / (double)n);
    }
    for (int k = 0; k < ROWS_AT_ONCE; k++) squares[k] = span_squares(form, a[k].x, n, a[k].mean);
    for (int k = 0; k < ROWS_AT_ONCE; k++) {
        if (keep_stats(f, row + k, a[k].mean, squares[k], &a[k].rstd))
            write_span(form, tensor_row(f->m.y, row + k), 0, &a[k]);
        else
            ref_norm_row(&f->m, row + k);
    }
}

static void norm_tile(void *work, int64_t tile)
{
    const NormForward *f = work;
    const int64_t end = min_i64((tile + 1) * f->per_tile, f->rows);
    int64_t row = tile * f->per_tile;
    NormOperands o;
    o.row = -1;
    read_span(f, row, 0, &o);
    for (; f->form != AS_OTHER && row + ROWS_AT_ONCE <= end; row += ROWS_AT_ONCE) {
        if (f->form == AS_BF16)
            norm_rows(AS_BF16, f, row, &o);
        else
            norm_rows(AS_F32, f, row, &o);
    }
    for (; row < end; row++) norm_row(f, row, &o);
}

/* The form of rows that can be read in place: contiguous, bf16 in full pairs of vectors, and short
 * enough that one span covers w and b. */
static ElementForm form_in_place(const NormForward *f)
{
    const RowRef x = tensor_row(f->m.x, 0);
    if (f->width > SPAN) return AS_OTHER;
    if (piece_is_contiguous(x, BF16) && f->width % (2 * W) == 0) return AS_BF16;
    return piece_is_contiguous(x, F32) ? AS_F32 : AS_OTHER;
}

static Err norm_run(const Call *call, Norm m)
{
    NormForward f = {.m = m, .rows = row_count(m.x), .width = row_length(m.x)};
    if (f.width == 0 || f.rows == 0) return OK;
    f.per_tile = max_i64(TILE_WORK / f.width, 1);
    f.form = form_in_place(&f);
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
