/* norm_back.c -- gradients of layernorm and rmsnorm, in one pass over dy and x.
 *
 *   h = (x - mean) rstd,  g = dy w,  dx = onto + rstd (g - avg(g) - h avg(g h))
 *   dw = sum over rows of dy h,  db = sum over rows of dy         rmsnorm: without avg(g), db
 *
 *     rows   [ tile ]    each row: averages, its terms to the tile's sums, then dx; it is read from
 *            [ tile ]    memory once, and from the first cache after that
 *            ---------
 *            dw, db      the tiles' sums, folded in their order
 *
 * One body, whether dx, dw or both are asked for, so each has the same bits either way. Tiles follow
 * from the shape alone. A norm without a `mean` tensor is an rmsnorm. */
#include "device/cpu/simd/simd.h"
#include "device/cpu/workspace.h"
#include "device/ref/norm.h"

#include <stddef.h>

enum { SPAN = 2048, MAX_TILES = 64, COLUMNS = 256 }; /* COLUMNS: of a tile of the fold */

typedef struct {
    Norm m;
    int64_t rows, width, per_tile, tiles;
    float *sums; /* [tiles][2][width]: of dw, of db; NULL where dx alone is asked for */
} Back;

/* Elements [from, from + n) of the operands of a row, as floats. */
typedef struct {
    const float *dy, *x, *w;
    int64_t row, from, n; /* row -1: nothing is read yet */
    float buffer[3][SPAN];
} Operands;

/* Reads what is not there already: a row that fits is read once, w once a tile. */
static void read_span(const Back *b, int64_t row, int64_t from, Operands *o)
{
    const bool same_w = o->row >= 0 && o->from == from;
    if (o->row == row && o->from == from) return;
    o->n = least(b->width - from, SPAN);
    o->dy = read_piece(tensor_row(b->m.dy, row), from, o->n, o->buffer[0]);
    o->x = read_piece(tensor_row(b->m.x, row), from, o->n, o->buffer[1]);
    if (b->m.w && !same_w) o->w = read_piece(tensor_row(b->m.w, 0), from, o->n, o->buffer[2]);
    o->row = row;
    o->from = from;
}

typedef struct {
    float mean, rstd, avg_g, avg_gh;
} RowNumbers;

/* Sums of a row are f64 from span to span, so wide rows lose nothing. */
static void row_averages(const Back *b, int64_t row, Operands *o, RowNumbers *r)
{
    double sum_g = 0, sum_gh = 0;
    for (int64_t from = 0; from < b->width; from += SPAN) {
        V part_g = {0}, part_gh = {0};
        read_span(b, row, from, o);
        for (int64_t i = 0; i < o->n; i += W) {
            const V g = v_load_to(o->dy + i, o->n - i) * v_load_to(o->w + i, o->n - i);
            part_g += g;
            part_gh += g * ((v_load_to(o->x + i, o->n - i) - r->mean) * r->rstd);
        }
        sum_g += (double)v_sum(part_g);
        sum_gh += (double)v_sum(part_gh);
    }
    r->avg_g = b->m.mean ? (float)(sum_g / (double)b->width) : 0;
    r->avg_gh = (float)(sum_gh / (double)b->width);
}

static void add_terms(const Operands *o, const RowNumbers *r, float *dw, float *db)
{
    for (int64_t i = 0; i < o->n; i += W) {
        const V dy = v_load_to(o->dy + i, o->n - i);
        const V h = (v_load_to(o->x + i, o->n - i) - r->mean) * r->rstd;
        v_store_to(dw + i, o->n - i, v_load_to(dw + i, o->n - i) + dy * h);
    }
    for (int64_t i = 0; db && i < o->n; i += W)
        v_store_to(db + i, o->n - i, v_load_to(db + i, o->n - i) + v_load_to(o->dy + i, o->n - i));
}

/* dx may lie over dy or onto. */
static void write_dx(const Back *b, int64_t row, const Operands *o, const RowNumbers *r)
{
    float buffer[2][SPAN];
    const Row to = tensor_row(b->m.y, row);
    const float *onto =
        b->m.onto ? read_piece(tensor_row(b->m.onto, row), o->from, o->n, buffer[0]) : NULL;
    float *dx = write_piece(to, o->from, buffer[1]);
    for (int64_t i = 0; i < o->n; i += W) {
        const V g = v_load_to(o->dy + i, o->n - i) * v_load_to(o->w + i, o->n - i);
        const V h = (v_load_to(o->x + i, o->n - i) - r->mean) * r->rstd;
        const V v = r->rstd * (g - r->avg_g - h * r->avg_gh);
        v_store_to(dx + i, o->n - i, onto ? v + v_load_to(onto + i, o->n - i) : v);
    }
    end_piece(to, o->from, o->n, dx);
}

static void back_tile(void *work, int64_t tile)
{
    const Back *b = work;
    const int64_t end = least((tile + 1) * b->per_tile, b->rows);
    float *dw = b->sums ? b->sums + 2 * tile * b->width : NULL, *db = dw ? dw + b->width : NULL;
    Operands o;
    o.row = -1;
    if (dw) memset(dw, 0, 2 * (size_t)b->width * sizeof *dw);
    for (int64_t row = tile * b->per_tile; row < end; row++) {
        RowNumbers r = {.mean = b->m.mean ? stat_get(b->m.mean, row) : 0,
                        .rstd = stat_get(b->m.rstd, row)};
        if (b->m.y) row_averages(b, row, &o, &r);
        for (int64_t from = 0; from < b->width; from += SPAN) {
            read_span(b, row, from, &o);
            if (dw) add_terms(&o, &r, dw + from, b->m.db ? db + from : NULL);
            if (b->m.y) write_dx(b, row, &o, &r);
        }
    }
}

/* Some columns of all tiles, in their order. */
static void fold_tile(void *work, int64_t tile)
{
    const Back *b = work;
    const int64_t column = tile * COLUMNS, n = least(b->width - column, COLUMNS);
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
    Back b = {.m = m, .rows = row_count(m.x), .width = row_length(m.x)};
    if (b.width == 0) return OK;
    b.per_tile = most(most(TILE_WORK / b.width, blocks_of(b.rows, MAX_TILES)), 1);
    b.tiles = blocks_of(b.rows, b.per_tile);
    Workspace *space = NULL;
    if (m.dw) {
        const size_t bytes = 2 * (size_t)(b.tiles * b.width) * sizeof *b.sums;
        TRY(workspace_take(bytes + 1, "the sums of a norm's gradient", &space));
        b.sums = space->at; /* no rows: a fold of nothing */
    }
    if (b.tiles > 0) team_run(call->team, b.tiles, back_tile, &b);
    if (m.dw) team_run(call->team, blocks_of(b.width, COLUMNS), fold_tile, &b);
    if (space) workspace_give(space);
    return OK;
}

Err CPU_NAME(layernorm_dx)(const Call *call) { return norm_back(call, norm_of_dx(call, true)); }
Err CPU_NAME(layernorm_dw)(const Call *call) { return norm_back(call, norm_of_dw(call, true)); }
Err CPU_NAME(layernorm_back)(const Call *call) { return norm_back(call, norm_of_back(call, true)); }
Err CPU_NAME(rmsnorm_dx)(const Call *call) { return norm_back(call, norm_of_dx(call, false)); }
Err CPU_NAME(rmsnorm_dw)(const Call *call) { return norm_back(call, norm_of_dw(call, false)); }
Err CPU_NAME(rmsnorm_back)(const Call *call) { return norm_back(call, norm_of_back(call, false)); }
