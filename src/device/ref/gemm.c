/* gemm.c -- products and column sums.
 *
 * A tile of c is 32 x 64. For each block of 64 along k, the strips of a and b that it needs are
 * packed as doubles, which undoes transposes, strides and types; then plain loops add to c.
 *
 *                    b [64, 64]
 *                   +----------+
 *     a [32, 64]    |          |
 *     +--------+    +----------+
 *     |        | -> c [32, 64]         the sum over k runs in index order, from zero
 *     +--------+
 */
#include "device/ref/ref.h"

#include <string.h>

enum { M_TILE = 32, N_TILE = 64, K_TILE = 64, LANES = 8 };

typedef struct {
    double a[M_TILE][K_TILE], b[K_TILE][N_TILE], c[M_TILE][N_TILE];
} Tile;

/* Rows and columns as the formula has them, not as they are stored. */
static Row formula_row(const Tensor *t, bool transposed, int64_t row, int64_t column)
{
    const int64_t down = t->stride[transposed], along = t->stride[!transposed];
    return row_at(t, row * down + column * along, along);
}

/* c += a b for the packed strips. Columns go in groups that fit registers; those past the edge of
 * the tensor are zeros in b and are never stored. */
static void multiply(Tile *t, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j += LANES) {
            double sum[LANES];
            memcpy(sum, &t->c[i][j], sizeof sum);
            for (int64_t p = 0; p < k; p++)
                for (int u = 0; u < LANES; u++) sum[u] += t->a[i][p] * t->b[p][j + u];
            memcpy(&t->c[i][j], sum, sizeof sum);
        }
}

static void add_bias(Tile *t, int64_t m, int64_t n, const Tensor *bias, int64_t column)
{
    double b[N_TILE];
    row_load(tensor_row(bias, 0), column, n, b);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) t->c[i][j] += b[j];
}

static void gemm_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const bool ta = call->attr.gemm.ta, tb = call->attr.gemm.tb;
    const int64_t across = blocks_of(c->n[1], N_TILE), depth = a->n[!ta];
    const int64_t row = tile / across * M_TILE, column = tile % across * N_TILE;
    const int64_t m = least(c->n[0] - row, M_TILE), n = least(c->n[1] - column, N_TILE);

    Tile t;
    memset(&t, 0, sizeof t);
    for (int64_t from = 0; from < depth; from += K_TILE) {
        const int64_t k = least(depth - from, K_TILE);
        for (int64_t i = 0; i < m; i++) row_load(formula_row(a, ta, row + i, from), 0, k, t.a[i]);
        for (int64_t p = 0; p < k; p++)
            row_load(formula_row(b, tb, from + p, column), 0, n, t.b[p]);
        multiply(&t, m, n, k);
    }
    if (call->n_in > 2) add_bias(&t, m, n, &call->in[2], column);
    for (int64_t i = 0; i < m; i++)
        row_keep(formula_row(c, false, row + i, column), 0, n, call->number[0], t.c[i]);
}

Err ref_gemm(const Call *call)
{
    const Tensor *c = &call->out[0];
    ref_tiles(call, blocks_of(c->n[0], M_TILE) * blocks_of(c->n[1], N_TILE), gemm_tile);
    return OK;
}

static void sum_rows_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *dy = &call->in[0], *db = &call->out[0];
    const int64_t column = tile * N_TILE, n = least(db->n[0] - column, N_TILE);

    double sum[N_TILE] = {0}, x[N_TILE];
    for (int64_t t = 0; t < dy->n[0]; t++) {
        row_load(tensor_row(dy, t), column, n, x);
        for (int64_t j = 0; j < n; j++) sum[j] += x[j];
    }
    row_keep(tensor_row(db, 0), column, n, call->number[0], sum);
}

Err ref_sum_rows(const Call *call)
{
    ref_tiles(call, blocks_of(call->out[0].n[0], N_TILE), sum_rows_tile);
    return OK;
}
