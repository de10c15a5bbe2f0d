/* update.c -- the kernels of action UPDATE, on a shard of a unit's pack: sums of squares, AdamW,
 * SGD. */
#include "device/cpu/simd/pointwise.h"

#include <stddef.h>

/* y: w, m, v. The decay is decoupled from the moments and uses the old weight. One pass: 16 bytes
 * read and 12 written per weight. */
static void adamw_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float beta1 = (float)call->attr.adamw.beta1, beta2 = (float)call->attr.adamw.beta2;
    const float rest1 = (float)(1 - call->attr.adamw.beta1);
    const float rest2 = (float)(1 - call->attr.adamw.beta2);
    const float eps = (float)call->attr.adamw.eps, factor = (float)call->number[1];
    const float step = (float)(call->number[0] / call->number[2]);
    const float over_bias2 = (float)(1 / call->number[3]);
    const float shrink = (float)(call->number[0] * call->attr.adamw.decay);
    for (int64_t i = 0; i < n; i += W) {
        const int64_t left = n - i;
        const V g = factor * v_load_to(x[0] + i, left), w = v_load_to(y[0] + i, left);
        const V m = beta1 * v_load_to(y[1] + i, left) + rest1 * g;
        const V v = beta2 * v_load_to(y[2] + i, left) + rest2 * g * g;
        v_store_to(y[1] + i, left, m);
        v_store_to(y[2] + i, left, v);
        v_store_to(y[0] + i, left, w - (step * m / (v_sqrt(v * over_bias2) + eps) + shrink * w));
    }
}

Err CPU_NAME(adamw)(const Call *call)
{
    pointwise(call, adamw_formula, UPDATE);
    return OK;
}

static void sgd_formula(const Call *call, int64_t n, const float *const *x, float *const *y)
{
    const float step = (float)(call->number[0] * call->number[1]);
    const float shrink = (float)(call->number[0] * call->attr.sgd.decay);
    for (int64_t i = 0; i < n; i += W) {
        const V w = v_load_to(y[0] + i, n - i);
        v_store_to(y[0] + i, n - i, w - (step * v_load_to(x[0] + i, n - i) + shrink * w));
    }
}

Err CPU_NAME(sgd)(const Call *call)
{
    pointwise(call, sgd_formula, UPDATE);
    return OK;
}

/* Sums of squares: at most SUMS partial sums, split by the shape alone, then added in order. All in
 * f64; independent vectors of SIDE sums hide the latency of the additions. */
enum { SUMS = 128, SIDE = 8 };

typedef double D __attribute__((vector_size(8 * SIDE)));
typedef float F __attribute__((vector_size(4 * SIDE)));

typedef struct {
    const Tensor *x;
    int64_t pieces, per_row, per_tile;
    double sum[SUMS];
} SquareSums;

static double piece_squares(const float *x, int64_t n)
{
    D a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 2 * SIDE <= n; i += 2 * SIDE) {
        F f[2];
        memcpy(f, x + i, sizeof f);
        const D c = __builtin_convertvector(f[0], D), d = __builtin_convertvector(f[1], D);
        a += c * c;
        b += d * d;
    }
    double sum = 0;
    a += b;
    for (int k = 0; k < SIDE; k++) sum += a[k];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void squares_tile(void *work, int64_t tile)
{
    SquareSums *s = work;
    const int64_t length = row_length(s->x), end = min_i64((tile + 1) * s->per_tile, s->pieces);
    float buffer[PIECE];
    double sum = 0;
    for (int64_t p = tile * s->per_tile; p < end; p++) {
        const int64_t from = p % s->per_row * PIECE, n = min_i64(length - from, PIECE);
        sum += piece_squares(read_piece(tensor_row(s->x, p / s->per_row), from, n, buffer), n);
    }
    s->sum[tile] = sum;
}

Err CPU_NAME(sum_squares)(const Call *call)
{
    const Tensor *x = &call->in[0];
    SquareSums s = {.x = x, .per_row = blocks_of(row_length(x), PIECE)};
    s.pieces = s.per_row * row_count(x);
    s.per_tile = max_i64(blocks_of(s.pieces, SUMS), TILE_WORK / PIECE);
    const int64_t tiles = blocks_of(s.pieces, s.per_tile);
    team_run(call->team, tiles, squares_tile, &s);
    double sum = 0;
    for (int64_t i = 0; i < tiles; i++) sum += s.sum[i];
    row_keep(tensor_row(&call->out[0], 0), 0, 1, call->number[0], &sum);
    return OK;
}

/* A bias of a router has few elements. */
Err CPU_NAME(sign_sgd)(const Call *call) { return ref_sign_sgd(call); }
