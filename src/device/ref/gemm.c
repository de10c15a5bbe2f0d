/* gemm.c -- GEMMs, plain and with an epilogue, and column sums.
 *
 * A tile of c is 32 x 64. For each block of 64 along k, the panels of a and b are packed as
 * doubles, which undoes transposes, strides and types; then plain loops add to c.
 *
 *                    b [64, 64]
 *                   +----------+
 *     a [32, 64]    |          |
 *     +--------+    +----------+
 *     |        | -> c [32, 64]         the sum over k runs in index order, from zero
 *     +--------+ */
#include "device/ref/pointwise.h"

#include <string.h>

enum { M_TILE = 32, N_TILE = 64, K_TILE = 64, LANES = 8 };

typedef struct {
    double a[M_TILE][K_TILE], b[K_TILE][N_TILE], c[M_TILE][N_TILE];
} Tile;

/* A row in the coordinates of the formula, not of storage. */
static RowRef formula_row(const Tensor *t, bool transposed, int64_t row, int64_t column)
{
    const int64_t down = t->stride[transposed], along = t->stride[!transposed];
    return row_at(t, row * down + column * along, along);
}

/* c += a b for the packed panels. Columns are processed in groups that fit registers; those past
 * the edge of the tensor are zeros in b and are never stored. */
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

/* The rows and columns of c that the tile covers. */
typedef struct {
    int64_t row, m, column, n;
} GemmTileBounds;

/* Consumes the finished tile. */
typedef void (*TileEpilogue)(const Call *call, Tile *t, GemmTileBounds at);

typedef struct {
    const Call *call;
    int bias; /* index of the bias input, if the call has it */
    TileEpilogue epilogue;
    bool scaled; /* in[2] and in[3] are the scales of a and b */
} TiledGemm;

/* Multiplies n elements of an operand, from (row, column) of the formula on, by their scales. */
static void apply_scales(const Call *call, int operand, int64_t row, int64_t column, int64_t n,
                         double *x)
{
    const bool t = operand ? call->attr.gemm.tb : call->attr.gemm.ta;
    const int32_t *block = operand ? call->attr.gemm.b_block : call->attr.gemm.a_block;
    const Tensor *s = &call->in[2 + operand];
    for (int64_t j = 0; j < n; j++)
        x[j] *= fp8_scale_at(s, block, t ? column + j : row, t ? row : column + j);
}

static void gemm_tile(void *work, int64_t tile)
{
    const TiledGemm *gemm = work;
    const Call *call = gemm->call;
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const bool ta = call->attr.gemm.ta, tb = call->attr.gemm.tb;
    const int64_t across = blocks_of(c->n[1], N_TILE), depth = a->n[!ta];
    const int64_t row = tile / across * M_TILE, column = tile % across * N_TILE;
    const int64_t m = min_i64(c->n[0] - row, M_TILE), n = min_i64(c->n[1] - column, N_TILE);

    Tile t;
    memset(&t, 0, sizeof t);
    for (int64_t from = 0; from < depth; from += K_TILE) {
        const int64_t k = min_i64(depth - from, K_TILE);
        for (int64_t i = 0; i < m; i++) {
            row_load(formula_row(a, ta, row + i, from), 0, k, t.a[i]);
            if (gemm->scaled) apply_scales(call, 0, row + i, from, k, t.a[i]);
        }
        for (int64_t p = 0; p < k; p++) {
            row_load(formula_row(b, tb, from + p, column), 0, n, t.b[p]);
            if (gemm->scaled) apply_scales(call, 1, from + p, column, n, t.b[p]);
        }
        multiply(&t, m, n, k);
    }
    if (call->n_in > gemm->bias) add_bias(&t, m, n, &call->in[gemm->bias], column);
    gemm->epilogue(call, &t, (GemmTileBounds){row, m, column, n});
}

static Err run_tiles(TiledGemm p)
{
    const Tensor *c = &p.call->out[0];
    const int64_t tiles = blocks_of(c->n[0], M_TILE) * blocks_of(c->n[1], N_TILE);
    if (tiles > 0) team_run(p.call->team, tiles, gemm_tile, &p);
    return OK;
}

static Err gemm_with(const Call *call, int bias, TileEpilogue epilogue)
{
    return run_tiles((TiledGemm){call, bias, epilogue, false});
}

static void keep_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    for (int64_t i = 0; i < at.m; i++)
        row_keep(formula_row(&call->out[0], false, at.row + i, at.column), 0, at.n, call->number[0],
                 t->c[i]);
}

Err ref_gemm(const Call *call) { return gemm_with(call, 2, keep_tile); }

/* in: a, b, sa, sb, bias? */
Err ref_scaled_gemm(const Call *call) { return run_tiles((TiledGemm){call, 4, keep_tile, true}); }

/* in: a, b, addend, bias?; or a, b, sa, sb, addend, bias? */
static void add_tile_of(const Call *call, const Tensor *to_add, Tile *t, GemmTileBounds at)
{
    for (int64_t i = 0; i < at.m; i++) {
        double addend[N_TILE];
        row_load(formula_row(to_add, false, at.row + i, at.column), 0, at.n, addend);
        for (int64_t j = 0; j < at.n; j++) t->c[i][j] += addend[j];
        row_store(formula_row(&call->out[0], false, at.row + i, at.column), 0, at.n, t->c[i]);
    }
}

static void add_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    add_tile_of(call, &call->in[2], t, at);
}

static void scaled_add_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    add_tile_of(call, &call->in[4], t, at);
}

Err ref_gemm_add(const Call *call) { return gemm_with(call, 3, add_tile); }

Err ref_scaled_gemm_add(const Call *call)
{
    return run_tiles((TiledGemm){call, 5, scaled_add_tile, true});
}

/* out: h, u.   h is computed from u as it is stored: the same bits as kernel gelu on u. */
static void gelu_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    for (int64_t i = 0; i < at.m; i++) {
        const RowRef u = formula_row(&call->out[1], false, at.row + i, at.column);
        row_store(u, 0, at.n, t->c[i]);
        row_load(u, 0, at.n, t->c[i]);
        for (int64_t j = 0; j < at.n; j++) t->c[i][j] = gelu_at(t->c[i][j]);
        row_store(formula_row(&call->out[0], false, at.row + i, at.column), 0, at.n, t->c[i]);
    }
}

Err ref_gemm_gelu(const Call *call) { return gemm_with(call, 2, gelu_tile); }

/* in: a, b, u */
static void dgelu_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    for (int64_t i = 0; i < at.m; i++) {
        double u[N_TILE];
        row_load(formula_row(&call->in[2], false, at.row + i, at.column), 0, at.n, u);
        for (int64_t j = 0; j < at.n; j++) t->c[i][j] *= gelu_slope_at(u[j]);
        row_store(formula_row(&call->out[0], false, at.row + i, at.column), 0, at.n, t->c[i]);
    }
}

/* in: a, b, gate, up   out: dgate, dup.   As swiglu_dx on a dy that is not rounded. */
static void dswiglu_tile(const Call *call, Tile *t, GemmTileBounds at)
{
    for (int64_t i = 0; i < at.m; i++) {
        double gate[N_TILE], up[N_TILE], dup[N_TILE];
        row_load(formula_row(&call->in[2], false, at.row + i, at.column), 0, at.n, gate);
        row_load(formula_row(&call->in[3], false, at.row + i, at.column), 0, at.n, up);
        for (int64_t j = 0; j < at.n; j++)
            swiglu_dx_at(t->c[i][j], gate[j], up[j], &t->c[i][j], &dup[j]);
        row_store(formula_row(&call->out[0], false, at.row + i, at.column), 0, at.n, t->c[i]);
        row_store(formula_row(&call->out[1], false, at.row + i, at.column), 0, at.n, dup);
    }
}

Err ref_gemm_dswiglu(const Call *call) { return gemm_with(call, 4, dswiglu_tile); }

static void sum_rows_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *dy = &call->in[0], *db = &call->out[0];
    const int64_t column = tile * N_TILE, n = min_i64(db->n[0] - column, N_TILE);

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

/* out: c, db? */
Err ref_gemm_dgelu(const Call *call)
{
    TRY(gemm_with(call, 3, dgelu_tile));
    if (call->n_out < 2) return OK;
    const Call sum = call_sum_rows(call, &call->out[0], 1);
    return ref_sum_rows(&sum);
}
