/* skinny.c -- dot products of rows of A with rows of B, four rows of A and two of B at a time.
 * Eight independent sums hide the latency of the multiply-adds. */
#include "device/cpu/simd/gemm/skinny.h"

#include <stdlib.h>

/* Rows of A per step; elements of B that a tile reads, approximately. */
enum { A_ROWS = 4, TILE_ELEMENTS = 1 << 17 };

typedef struct {
    const Call *call;
    const float *x[MAX_SKINNY_ROWS]; /* rows of A; the last one repeated past m */
    int64_t m, k, columns;           /* columns of C in a tile */
} SkinnyGemm;

bool skinny_fits(const Call *call)
{
    const Tensor *a = &call->in[0], *b = &call->in[1];
    if (call->attr.gemm.ta || !call->attr.gemm.tb || a->n[0] > MAX_SKINNY_ROWS || a->n[1] == 0)
        return false;
    return b->stride[1] == 1 && (b->dtype == F32 || b->dtype == BF16);
}

/* W elements of a row of B; only n are there, the lanes after them are zero. */
static inline V load_f32(const void *b, int64_t from, int64_t n)
{
    return v_load_to((const float *)b + from, n);
}

static inline V load_bf16(const void *b, int64_t from, int64_t n)
{
    uint16_t last[W] = {0};
    const uint16_t *at = (const uint16_t *)b + from;
    if (n >= W) return v_load_bf16(at);
    memcpy(last, at, (size_t)n * sizeof *at);
    return v_load_bf16(last);
}

typedef V Load(const void *b, int64_t from, int64_t n);

/* sum[i][j] = x[i] . row j of B, for two rows. The sums are named variables: an array of them would
 * be kept in memory. */
static inline __attribute__((always_inline)) void
dots(const float *const x[A_ROWS], const RowRef b[2], int64_t k, Load *load, float sum[A_ROWS][2])
{
    const int64_t two = 2 * (b[1].at - b[0].at), size = (int64_t)dtype_bytes(b[0].dtype);
    V a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    for (int64_t at = 0; at < k; at += W) {
        const int64_t n = k - at;
        const V p = load(b[0].at, at, n), q = load(b[1].at, at, n);
        /* The next two rows: a row is too short for the hardware prefetcher to detect the stream.
         * 1.7 times the speed for one row of A and weights of 500 MB. */
        __builtin_prefetch(b[0].at + two + at * size, 0, 1);
        __builtin_prefetch(b[1].at + two + at * size, 0, 1);
        const V x0 = v_load_to(x[0] + at, n), x1 = v_load_to(x[1] + at, n);
        const V x2 = v_load_to(x[2] + at, n), x3 = v_load_to(x[3] + at, n);
        a0 += x0 * p, a1 += x1 * p, a2 += x2 * p, a3 += x3 * p;
        b0 += x0 * q, b1 += x1 * q, b2 += x2 * q, b3 += x3 * q;
    }
    const V all[A_ROWS][2] = {{a0, b0}, {a1, b1}, {a2, b2}, {a3, b3}};
    for (int i = 0; i < A_ROWS; i++)
        for (int j = 0; j < 2; j++) sum[i][j] = v_sum(all[i][j]);
}

static void dots_f32(const float *const x[A_ROWS], const RowRef b[2], int64_t k,
                     float sum[A_ROWS][2])
{
    dots(x, b, k, load_f32, sum);
}

static void dots_bf16(const float *const x[A_ROWS], const RowRef b[2], int64_t k,
                      float sum[A_ROWS][2])
{
    dots(x, b, k, load_bf16, sum);
}

static void skinny_tile(void *work, int64_t tile)
{
    const SkinnyGemm *g = work;
    const Call *call = g->call;
    const Tensor *b = &call->in[1], *c = &call->out[0];
    const int64_t end = min_i64((tile + 1) * g->columns, c->n[1]);
    for (int64_t j = tile * g->columns; j < end; j += 2) {
        const int64_t pair = min_i64(end - j, 2);
        const RowRef rows[2] = {tensor_row(b, j), tensor_row(b, j + pair - 1)};
        float bias[2] = {0}, sum[MAX_SKINNY_ROWS][2];
        if (call->n_in > 2) load_piece(tensor_row(&call->in[2], 0), j, pair, bias);
        for (int64_t i = 0; i < g->m; i += A_ROWS)
            (b->dtype == F32 ? dots_f32 : dots_bf16)(&g->x[i], rows, g->k, &sum[i]);
        for (int64_t i = 0; i < g->m; i++) {
            for (int n = 0; n < 2 && call->n_in > 2; n++) sum[i][n] += bias[n];
            keep_piece(tensor_row(c, i), j, pair, (float)call->number[0], sum[i]);
        }
    }
}

/* Sets x to the rows of A: in place, or converted to f32 in `copy` if it is not NULL. */
static void take_rows(SkinnyGemm *g, float *copy)
{
    const Tensor *a = &g->call->in[0];
    for (int64_t i = 0; i < g->m; i++) {
        const RowRef row = tensor_row(a, i);
        g->x[i] = copy ? copy + i * g->k : (const float *)(void *)row.at;
        if (copy) load_piece(row, 0, g->k, copy + i * g->k);
    }
    for (int64_t i = g->m; i < MAX_SKINNY_ROWS; i++) g->x[i] = g->x[g->m - 1];
}

Err skinny_gemm(const Call *call)
{
    const Tensor *a = &call->in[0], *c = &call->out[0];
    SkinnyGemm g = {.call = call, .m = a->n[0], .k = a->n[1]};
    const bool plain = a->dtype == F32 && a->stride[1] == 1;
    const size_t bytes = (size_t)(g.m * g.k) * sizeof(float);
    float *copy = plain ? NULL : malloc(bytes);
    if (!plain && !copy)
        return err_fail(ERR_NOMEM, "no memory for %lld rows of a skinny GEMM, %zu bytes",
                        (long long)g.m, bytes);
    take_rows(&g, copy);
    g.columns = TILE_ELEMENTS / g.k / 2 * 2;
    if (g.columns < 2) g.columns = 2;
    team_run(call->team, blocks_of(c->n[1], g.columns), skinny_tile, &g);
    free(copy);
    return OK;
}
