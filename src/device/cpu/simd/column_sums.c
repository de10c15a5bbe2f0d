/* column_sums.c -- sums over all rows: the gradient of a bias.
 *
 *     columns ->   [  COLUMNS  ][  COLUMNS  ]      a tile owns some columns and walks down all rows:
 *     rows  |      [   block   ][   block   ]      sums of a block of rows in registers' reach, then
 *           v      [   block   ][   block   ]      added to the total, so long sums stay exact
 */
#include "device/cpu/simd/simd.h"

#include <stddef.h>

enum { COLUMNS = 64, BLOCK = 128 };

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
