/* few_rows.c -- dot products of rows of a with rows of b, two of b and four of a at a time: eight sums
 * in flight hide how long one takes. */
#include "device/cpu/simd/gemm/few_rows.h"

#include <stdlib.h>

enum { AT_ONCE = 4, TILE_NUMBERS = 1 << 17 }; /* rows of a; numbers of b that a tile reads, about */

typedef struct {
    const Call *call;
    const float *x[FEW_ROWS]; /* rows of a, and copies of the last beyond them */
    int64_t m, k, columns;    /* columns: of c, in a tile */
} FewRows;

bool few_rows_fit(const Call *call)
{
    const Tensor *a = &call->in[0], *b = &call->in[1];
    if (call->attr.gemm.ta || !call->attr.gemm.tb || a->n[0] > FEW_ROWS || a->n[1] == 0)
        return false;
    return b->stride[1] == 1 && (b->dtype == F32 || b->dtype == BF16);
}

/* W numbers of a row of b; zeros behind the n that there are. */
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

/* sum[i][j] = x[i] . row j of b, of two rows. Sums have names, to stay in registers. */
static inline __attribute__((always_inline)) void
dots(const float *const x[AT_ONCE], const RowRef b[2], int64_t k, Load *load, float sum[AT_ONCE][2])
{
    const int64_t two = 2 * (b[1].at - b[0].at), size = (int64_t)dtype_bytes(b[0].dtype);
    V a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    for (int64_t at = 0; at < k; at += W) {
        const int64_t n = k - at;
        const V p = load(b[0].at, at, n), q = load(b[1].at, at, n);
        /* Of the next two rows: a row ends before the CPU has learnt where it goes. 1.7 times the
         * speed, one row of a, weights of 500 MB. */
        __builtin_prefetch(b[0].at + two + at * size, 0, 1);
        __builtin_prefetch(b[1].at + two + at * size, 0, 1);
        const V x0 = v_load_to(x[0] + at, n), x1 = v_load_to(x[1] + at, n);
        const V x2 = v_load_to(x[2] + at, n), x3 = v_load_to(x[3] + at, n);
        a0 += x0 * p, a1 += x1 * p, a2 += x2 * p, a3 += x3 * p;
        b0 += x0 * q, b1 += x1 * q, b2 += x2 * q, b3 += x3 * q;
    }
    const V all[AT_ONCE][2] = {{a0, b0}, {a1, b1}, {a2, b2}, {a3, b3}};
    for (int i = 0; i < AT_ONCE; i++)
        for (int j = 0; j < 2; j++) sum[i][j] = v_sum(all[i][j]);
}

static void dots_f32(const float *const x[AT_ONCE], const RowRef b[2], int64_t k,
                     float sum[AT_ONCE][2])
{
    dots(x, b, k, load_f32, sum);
}

static void dots_bf16(const float *const x[AT_ONCE], const RowRef b[2], int64_t k,
                      float sum[AT_ONCE][2])
{
    dots(x, b, k, load_bf16, sum);
}

static void few_tile(void *work, int64_t tile)
{
    const FewRows *f = work;
    const Call *call = f->call;
    const Tensor *b = &call->in[1], *c = &call->out[0];
    const int64_t end = least((tile + 1) * f->columns, c->n[1]);
    for (int64_t j = tile * f->columns; j < end; j += 2) {
        const int64_t pair = least(end - j, 2);
        const RowRef rows[2] = {tensor_row(b, j), tensor_row(b, j + pair - 1)};
        float bias[2] = {0}, sum[FEW_ROWS][2];
        if (call->n_in > 2) load_piece(tensor_row(&call->in[2], 0), j, pair, bias);
        for (int64_t i = 0; i < f->m; i += AT_ONCE)
            (b->dtype == F32 ? dots_f32 : dots_bf16)(&f->x[i], rows, f->k, &sum[i]);
        for (int64_t i = 0; i < f->m; i++) {
            for (int n = 0; n < 2 && call->n_in > 2; n++) sum[i][n] += bias[n];
            keep_piece(tensor_row(c, i), j, pair, (float)call->number[0], sum[i]);
        }
    }
}

/* Rows of a as floats: where they lie, or in `copy`. */
static void take_rows(FewRows *f, float *copy)
{
    const Tensor *a = &f->call->in[0];
    for (int64_t i = 0; i < f->m; i++) {
        const RowRef row = tensor_row(a, i);
        f->x[i] = copy ? copy + i * f->k : (const float *)(void *)row.at;
        if (copy) load_piece(row, 0, f->k, copy + i * f->k);
    }
    for (int64_t i = f->m; i < FEW_ROWS; i++) f->x[i] = f->x[f->m - 1];
}

Err few_rows_gemm(const Call *call)
{
    const Tensor *a = &call->in[0], *c = &call->out[0];
    FewRows f = {.call = call, .m = a->n[0], .k = a->n[1]};
    const bool plain = a->dtype == F32 && a->stride[1] == 1;
    const size_t bytes = (size_t)(f.m * f.k) * sizeof(float);
    float *copy = plain ? NULL : malloc(bytes);
    if (!plain && !copy)
        return err_fail(ERR_NOMEM, "no memory for %lld rows of a product, %zu bytes",
                        (long long)f.m, bytes);
    take_rows(&f, copy);
    f.columns = TILE_NUMBERS / f.k / 2 * 2;
    if (f.columns < 2) f.columns = 2;
    team_run(call->team, blocks_of(c->n[1], f.columns), few_tile, &f);
    free(copy);
    return OK;
}
