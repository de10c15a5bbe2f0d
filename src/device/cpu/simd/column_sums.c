/* column_sums.c -- sums over all rows: of dy, and of dy h for the weights of a norm.
 *
 *      columns ->  [  COLUMNS  ][  COLUMNS  ]      a tile owns some columns and walks down all
 * rows: rows  |     [   block   ][   block   ]      sums of a block of rows in registers' reach,
 * then v     [   block   ][   block   ]      added to the total, so long sums stay exact
 */
#include "device/cpu/simd/simd.h"

#include <stddef.h>

enum { COLUMNS = 64, BLOCK = 128 };

typedef struct {
    float dw[COLUMNS], db[COLUMNS];
} Sums;

static void add_sums(float *total, float *part, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        v_store_to(total + i, n - i, v_load_to(total + i, n - i) + v_load_to(part + i, n - i));
}

static void sum_rows_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *dy = &call->in[0], *db = &call->out[0];
    const int64_t column = tile * COLUMNS, n = least(db->n[0] - column, COLUMNS);
    float total[COLUMNS] = {0}, buffer[COLUMNS];
    for (int64_t first = 0; first < dy->n[0]; first += BLOCK) {
        const int64_t end = least(first + BLOCK, dy->n[0]);
        V part[COLUMNS / W];
        memset(part, 0, sizeof part);
        for (int64_t t = first; t < end; t++) {
            const float *x = read_piece(tensor_row(dy, t), column, n, buffer);
            if (n == COLUMNS)
                for (int i = 0; i < COLUMNS / W; i++) part[i] += v_load(x + i * W);
            else
                for (int64_t i = 0; i < n; i += W) part[i / W] += v_load_to(x + i, n - i);
        }
        add_sums(total, (float *)part, n);
    }
    keep_piece(tensor_row(db, 0), column, n, (float)call->number[0], total);
}

Err CPU_NAME(sum_rows)(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], COLUMNS), sum_rows_tile);
    return OK;
}

/* in: dy, x, mean?, rstd   out: dw, db?: a layernorm has both of the optional ones. */
typedef struct {
    const Call *call;
    const Tensor *dy, *x, *mean, *rstd;
} NormDw;

/* Rows [first, end) of some columns. */
static void norm_dw_block(const NormDw *d, int64_t first, int64_t end, int64_t column, int64_t n,
                          Sums *sums)
{
    float buffer[2][COLUMNS];
    V dw[COLUMNS / W], db[COLUMNS / W];
    memset(dw, 0, sizeof dw);
    memset(db, 0, sizeof db);
    for (int64_t row = first; row < end; row++) {
        const float mean = d->mean ? stat_get(d->mean, row) : 0, rstd = stat_get(d->rstd, row);
        const float *g = read_piece(tensor_row(d->dy, row), column, n, buffer[0]);
        const float *x = read_piece(tensor_row(d->x, row), column, n, buffer[1]);
        for (int64_t i = 0; i < n; i += W) {
            const V v = v_load_to(g + i, n - i);
            dw[i / W] += v * ((v_load_to(x + i, n - i) - mean) * rstd);
            db[i / W] += v;
        }
    }
    add_sums(sums->dw, (float *)dw, n);
    add_sums(sums->db, (float *)db, n);
}

static void norm_dw_tile(void *work, int64_t tile)
{
    const NormDw *d = work;
    const int64_t column = tile * COLUMNS, n = least(row_length(d->x) - column, COLUMNS);
    const int64_t rows = row_count(d->x);
    Sums sums = {{0}, {0}};
    for (int64_t first = 0; first < rows; first += BLOCK)
        norm_dw_block(d, first, least(first + BLOCK, rows), column, n, &sums);
    const Call *call = d->call;
    keep_piece(tensor_row(&call->out[0], 0), column, n, (float)call->number[0], sums.dw);
    if (d->mean)
        keep_piece(tensor_row(&call->out[1], 0), column, n, (float)call->number[1], sums.db);
}

Err CPU_NAME(layernorm_dw)(const Call *call)
{
    const Tensor *in = call->in;
    NormDw d = {call, &in[0], &in[1], call->n_out > 1 ? &in[2] : NULL, &in[call->n_in - 1]};
    const int64_t tiles = blocks_of(row_length(d.x), COLUMNS);
    if (tiles > 0) team_run(call->team, tiles, norm_dw_tile, &d);
    return OK;
}

Err CPU_NAME(rmsnorm_dw)(const Call *call) { return CPU_NAME(layernorm_dw)(call); }
