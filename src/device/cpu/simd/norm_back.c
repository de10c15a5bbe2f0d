/* norm_back.c -- gradients of layernorm and rmsnorm, in one pass over dy and x.
 *
 *     h = (x - mean) rstd,  g = dy w,  dx = addend + rstd (g - avg(g) - h avg(g h))
 *     dw = sum over rows of dy h,  db = sum over rows of dy         rmsnorm: no avg(g), no db
 *
 *     rows   [ tile ]    per row: averages, its terms of the tile's sums, then dx. The row is read
 *            [ tile ]    from memory once, and from L1 afterwards
 *            ---------
 *            dw, db      the tiles' sums, added in order
 *
 * One implementation computes dx, dw or both, so each has the same bits in all combinations. Tiles
 * follow from the shape alone. A norm without a `mean` tensor is an rmsnorm. The column sums of the
 * addend, where requested, are computed first by sum_rows and have its bits. */
#include "device/cpu/simd/simd.h"
#include "device/cpu/workspace.h"
#include "device/ref/norm.h"

#include <stddef.h>

enum { SPAN = 2048, MAX_TILES = 64, COLUMNS = 256 }; /* COLUMNS: of a tile of the final sum */

typedef struct {
    Norm m;
    int64_t rows, width, per_tile, tiles;
    ElementForm form; /* in which dy and x are read */
    float *sums;      /* [tiles][2][width]: dw, db; NULL if only dx is computed */
} NormBackward;

/* Elements [from, from + n) of a row's operands: as floats, or dy and x as bf16 in place, which
 * takes half the time of converting copies. */
typedef struct {
    const void *dy, *x;
    const float *w;
    int64_t row, from, n; /* row -1: nothing is read yet */
    _Alignas(64) float buffer[3][SPAN];
} NormBackOperands;

/* bf16 is read in place if it is contiguous and made of full pairs of vectors. */
static ElementForm form_to_read(const Norm *m)
{
    const bool contiguous = piece_is_contiguous(tensor_row(m->dy, 0), BF16) &&
                            piece_is_contiguous(tensor_row(m->x, 0), BF16);
    return contiguous && row_length(m->x) % (2 * W) == 0 ? AS_BF16 : AS_F32;
}

static const void *read_as(ElementForm form, RowRef r, int64_t from, int64_t n, float *buffer)
{
    return form == AS_BF16 ? (const void *)piece_at(r, from) : read_piece(r, from, n, buffer);
}

/* Reads the span unless it is loaded already: a row that fits is read once, w once per tile. */
static void read_span(const NormBackward *b, int64_t row, int64_t from, NormBackOperands *o)
{
    const bool same_w = o->row >= 0 && o->from == from;
    if (o->row == row && o->from == from) return;
    o->n = min_i64(b->width - from, SPAN);
    o->dy = read_as(b->form, tensor_row(b->m.dy, row), from, o->n, o->buffer[0]);
    o->x = read_as(b->form, tensor_row(b->m.x, row), from, o->n, o->buffer[1]);
    if (b->m.w && !same_w) o->w = read_piece(tensor_row(b->m.w, 0), from, o->n, o->buffer[2]);
    o->row = row;
    o->from = from;
}

typedef struct {
    float mean, rstd, avg_g, avg_gh;
} NormRowStats;

/* Sums of g and of g h over a row. */
typedef struct {
    V g, gh;
} NormRowSums;

/* The terms of a span: of its row's sums, if w is set; of its columns' sums, if dw and db are
 * set. */
typedef struct {
    const void *dy, *x;
    const float *w;
    float mean, rstd;
    float *dw, *db;
} NormTerms;

/* n: elements left, for floats; bf16 always has full vectors. */
EACH_FORM V load_to(ElementForm form, const void *at, int64_t i, int64_t n)
{
    return form == AS_F32 ? v_load_to((const float *)at + i, n) : v_load_as(form, at, i);
}

EACH_FORM void add_terms(ElementForm form, const NormTerms *t, int64_t i, int64_t n, NormRowSums *s)
{
    const V dy = load_to(form, t->dy, i, n), x = load_to(form, t->x, i, n);
    const V h = (x - t->mean) * t->rstd;
    if (t->w) {
        const V g = dy * v_load_to(t->w + i, n);
        s->g += g;
        s->gh += g * h;
    }
    if (t->dw) {
        const V dw = v_load_to(t->dw + i, n);
        v_store_to(t->dw + i, n, dw + dy * h);
    }
    if (t->db) v_store_to(t->db + i, n, v_load_to(t->db + i, n) + dy);
}

/* Two independent sums hide the latency of additions. */
EACH_FORM void span_terms(ElementForm form, NormTerms t, int64_t n, double *sum_g, double *sum_gh)
{
    NormRowSums a = {{0}, {0}}, b = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        add_terms(form, &t, i, W, &a);
        add_terms(form, &t, i + W, W, &b);
    }
    for (; i < n; i += W) add_terms(form, &t, i, n - i, &a);
    *sum_g += (double)v_sum(a.g + b.g);
    *sum_gh += (double)v_sum(a.gh + b.gh);
}

/* f64 between spans, so wide rows lose no accuracy. */
static void row_terms(const NormBackward *b, int64_t row, NormBackOperands *o, float *sums,
                      NormRowStats *r)
{
    double sum_g = 0, sum_gh = 0;
    NormTerms t = {.mean = r->mean, .rstd = r->rstd};
    for (int64_t from = 0; from < b->width; from += SPAN) {
        read_span(b, row, from, o);
        t.dy = o->dy, t.x = o->x, t.w = b->m.y ? o->w : NULL;
        t.dw = sums ? sums + from : NULL;
        t.db = sums && b->m.db ? sums + b->width + from : NULL;
        if (b->form == AS_BF16)
            span_terms(AS_BF16, t, o->n, &sum_g, &sum_gh);
        else
            span_terms(AS_F32, t, o->n, &sum_g, &sum_gh);
    }
    r->avg_g = b->m.mean ? (float)(sum_g / (double)b->width) : 0;
    r->avg_gh = (float)(sum_gh / (double)b->width);
}

typedef struct {
    const void *dy, *x;
    const float *w;
    int64_t n;
    NormRowStats r;
} NormDx;

/* One expression for all paths, so that all have the same bits. Loads, which may branch, come
 * first. A missing addend is zeros. */
EACH_FORM V dx_of(ElementForm form, const NormDx *a, int64_t i, int64_t n, V addend)
{
    const V dy = load_to(form, a->dy, i, n), w = v_load_to(a->w + i, n),
            x = load_to(form, a->x, i, n);
    const V h = (x - a->r.mean) * a->r.rstd;
    return a->r.rstd * (dy * w - a->r.avg_g - h * a->r.avg_gh) + addend;
}

/* Writes full pairs of vectors; returns the number of elements written. dx may be the addend. `to`:
 * the form of both. */
EACH_FORM int64_t write_pairs(ElementForm form, ElementForm to, void *dx, const void *addend,
                              const NormDx *a)
{
    int64_t i = 0;
    for (; i + 2 * W <= a->n; i += 2 * W) {
        const V at = addend ? v_load_as(to, addend, i) : v_set(0);
        const V next = addend ? v_load_as(to, addend, i + W) : v_set(0);
        v_store_pair_as(to, dx, i, dx_of(form, a, i, W, at), dx_of(form, a, i + W, W, next));
    }
    return i;
}

EACH_FORM int64_t write_to(ElementForm form, ElementForm to, void *dx, const void *addend,
                           const NormDx *a)
{
    if (to == AS_F32) return write_pairs(form, AS_F32, dx, addend, a);
    if (to == AS_BF16) return write_pairs(form, AS_BF16, dx, addend, a);
    return to == AS_BF16_HW ? write_pairs(form, AS_BF16_HW, dx, addend, a) : 0;
}

/* Writes the elements that were not stored directly, by the same loop: in another loop the compiler
 * might contract other FMAs and change bits. */
EACH_FORM void write_rest(ElementForm form, RowRef to, RowRef from, int64_t at, int64_t done,
                          const NormDx *a)
{
    _Alignas(64) float dx[SPAN], addend[SPAN] = {0};
    int64_t i = done;
    if (from.at) load_piece(from, at + done, a->n - done, addend + done);
    if (done == 0) i = write_pairs(form, AS_F32, dx, addend, a);
    for (; i < a->n; i += W)
        v_store_to(dx + i, a->n - i, dx_of(form, a, i, a->n - i, v_load_to(addend + i, a->n - i)));
    store_piece(to, at + done, a->n - done, dx + done);
}

/* dx may alias dy or the addend. */
EACH_FORM void write_dx(ElementForm form, const NormBackward *b, int64_t row,
                        const NormBackOperands *o, const NormRowStats *r)
{
    const NormDx a = {o->dy, o->x, o->w, o->n, *r};
    const RowRef to = tensor_row(b->m.y, row);
    const RowRef from = b->m.addend ? tensor_row(b->m.addend, row) : (RowRef){.at = NULL};
    const void *addend = from.at ? piece_at(from, o->from) : NULL;
    const bool alike = !from.at || form_of(to) == form_of(from);
    const int64_t done = alike ? write_to(form, form_of(to), piece_at(to, o->from), addend, &a) : 0;
    if (done < a.n) write_rest(form, to, from, o->from, done, &a);
}

static void back_tile(void *work, int64_t tile)
{
    const NormBackward *b = work;
    const int64_t end = min_i64((tile + 1) * b->per_tile, b->rows);
    float *const sums = b->sums ? b->sums + 2 * tile * b->width : NULL;
    NormBackOperands o;
    o.row = -1;
    if (sums) memset(sums, 0, 2 * (size_t)b->width * sizeof *sums);
    for (int64_t row = tile * b->per_tile; row < end; row++) {
        NormRowStats r = {.mean = b->m.mean ? stat_get(b->m.mean, row) : 0,
                          .rstd = stat_get(b->m.rstd, row)};
        row_terms(b, row, &o, sums, &r);
        for (int64_t from = 0; b->m.y && from < b->width; from += SPAN) {
            read_span(b, row, from, &o);
            if (b->form == AS_BF16)
                write_dx(AS_BF16, b, row, &o, &r);
            else
                write_dx(AS_F32, b, row, &o, &r);
        }
    }
}

/* Adds COLUMNS columns of all tiles, in tile order. */
static void fold_tile(void *work, int64_t tile)
{
    const NormBackward *b = work;
    const int64_t column = tile * COLUMNS, n = min_i64(b->width - column, COLUMNS);
    for (int which = 0; which < (b->m.db ? 2 : 1); which++) {
        float total[COLUMNS] = {0};
        for (int64_t t = 0; t < b->tiles; t++) {
            const float *part = b->sums + (2 * t + which) * b->width + column;
            for (int64_t i = 0; i < n; i += W)
                v_store_to(total + i, n - i,
                           v_load_to(total + i, n - i) + v_load_to(part + i, n - i));
        }
        const double keep = which ? b->m.keep_db : b->m.keep_dw;
        keep_piece(tensor_row(which ? b->m.db : b->m.dw, 0), column, n, (float)keep, total);
    }
}

static Err norm_back(const Call *call, Norm m)
{
    NormBackward b = {.m = m, .rows = row_count(m.x), .width = row_length(m.x)};
    if (b.width == 0) return OK;
    b.form = b.rows > 0 ? form_to_read(&m) : AS_F32;
    b.per_tile = max_i64(max_i64(TILE_WORK / b.width, blocks_of(b.rows, MAX_TILES)), 1);
    b.tiles = blocks_of(b.rows, b.per_tile);
    Workspace *space = NULL;
    if (m.dw) {
        const size_t bytes = 2 * (size_t)(b.tiles * b.width) * sizeof *b.sums;
        TRY(workspace_take(bytes + 1, "the sums of a norm's gradient", &space));
        b.sums = space->at; /* valid for zero rows too: dw is then only scaled */
    }
    if (b.tiles > 0) team_run(call->team, b.tiles, back_tile, &b);
    if (m.dw) team_run(call->team, blocks_of(b.width, COLUMNS), fold_tile, &b);
    if (space) workspace_give(space);
    return OK;
}

Err CPU_NAME(layernorm_dx)(const Call *call) { return norm_back(call, norm_of_dx(call, true)); }
Err CPU_NAME(layernorm_dw)(const Call *call) { return norm_back(call, norm_of_dw(call, true)); }
Err CPU_NAME(layernorm_back)(const Call *call)
{
    TRY(norm_sum_addend(call, CPU_NAME(sum_rows)));
    return norm_back(call, norm_of_back(call, true));
}

Err CPU_NAME(rmsnorm_dx)(const Call *call) { return norm_back(call, norm_of_dx(call, false)); }
Err CPU_NAME(rmsnorm_dw)(const Call *call) { return norm_back(call, norm_of_dw(call, false)); }
Err CPU_NAME(rmsnorm_back)(const Call *call) { return norm_back(call, norm_of_back(call, false)); }
