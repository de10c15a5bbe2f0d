/* gemm.c -- products of large matrices: c cut into tiles by its shape, each the work of one thread.
 *
 * f32 whose rows or columns are contiguous goes to the library as it lies. Anything else (bf16,
 * other strides, one row or column, no library) is brought to f32 blocks first, which the library
 * or our own kernel multiplies. A few rows times a matrix are few_rows.c's.
 *
 * Sums over k are in the order of whoever multiplies, which follows from the shape of the call; the
 * library adds to an accumulator as it goes, our blocks are added when they are whole. */
#include "device/cpu/simd/few_rows.h"
#include "device/cpu/simd/micro.h"

#include <stdatomic.h>
#include <stdlib.h>
#include "device/cpu/blas.h"

/* c as rows x columns of tiles of nearly one size, borders on multiples of 16. */
typedef struct {
    int64_t n, parts;
} Cut;

static int64_t cut_at(Cut c, int64_t part)
{
    return part == c.parts ? c.n : c.n * part / c.parts / 16 * 16;
}

typedef struct {
    const Call *call;
    Cut rows, columns;
    Sgemm sgemm; /* or NULL */
    atomic_bool no_memory;
} Product;

/* A tile is about 512 x 1024: the library packs its operands for each, and is within 4% of its
 * speed on the whole (at 256 x 256 it loses 10%). Where that makes fewer than 12, tiles are halved
 * while they are not small, to have something for many threads. */
static void cut_tiles(Product *p, int64_t m, int64_t n)
{
    p->rows = (Cut){m, blocks_of(m, 512)};
    p->columns = (Cut){n, blocks_of(n, 1024)};
    while (p->rows.parts * p->columns.parts < 12) {
        const int64_t height = m / p->rows.parts, width = n / p->columns.parts;
        if (width < 256 && height < 256) break;
        if (width >= height)
            p->columns.parts *= 2;
        else
            p->rows.parts *= 2;
    }
}

/* Whether BLAS can be told how the tensor lies, and how: the step from row to row (or, where it is
 * transposed in memory, from column to column). */
typedef struct {
    bool fits, flipped;
    int64_t step;
} Lie;

static Lie lie_of(const Tensor *t)
{
    if (t->dtype != F32) return (Lie){.fits = false};
    if (t->stride[1] == 1 && t->stride[0] >= t->n[1]) return (Lie){true, false, t->stride[0]};
    if (t->stride[0] == 1 && t->stride[1] >= t->n[0]) return (Lie){true, true, t->stride[1]};
    return (Lie){.fits = false};
}

static const float *element(const Tensor *t, bool transposed, int64_t row, int64_t column)
{
    return (const float *)t->data + row * t->stride[transposed] + column * t->stride[!transposed];
}

/* c = keep * c + bias, so that the product is only added. */
static void start_from_bias(const Product *p, int64_t row, int64_t m, int64_t column, int64_t n)
{
    const Call *call = p->call;
    const Tensor *c = &call->out[0];
    float bias[PIECE];
    for (int64_t from = column; from < column + n; from += PIECE) {
        const int64_t part = least(column + n - from, PIECE);
        load_piece(tensor_row(&call->in[2], 0), from, part, bias);
        for (int64_t i = row; i < row + m; i++)
            keep_piece(tensor_row(c, i), from, part, (float)call->number[0], bias);
    }
}

static void library_tile(void *work, int64_t tile)
{
    const Product *p = work;
    const Call *call = p->call;
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const bool ta = call->attr.gemm.ta, tb = call->attr.gemm.tb, bias = call->n_in > 2;
    const int64_t r = tile / p->columns.parts, s = tile % p->columns.parts;
    const int64_t row = cut_at(p->rows, r), m = cut_at(p->rows, r + 1) - row;
    const int64_t column = cut_at(p->columns, s), n = cut_at(p->columns, s + 1) - column;
    const Lie la = lie_of(a), lb = lie_of(b);
    if (bias) start_from_bias(p, row, m, column, n);
    p->sgemm(BLAS_ROWS, la.flipped != ta ? BLAS_TRANSPOSED : BLAS_PLAIN,
             lb.flipped != tb ? BLAS_TRANSPOSED : BLAS_PLAIN, (int)m, (int)n, (int)a->n[!ta], 1,
             element(a, ta, row, 0), (int)la.step, element(b, tb, 0, column), (int)lb.step,
             bias ? 1 : (float)call->number[0], (float *)element(c, false, row, column),
             (int)c->stride[0]);
}

/* Blocks of 1 MiB: converting one side costs 1/256 of the products it serves. They are allocated
 * for each tile, which is nothing beside its products: a stack may be smaller than they are, and
 * what is static to a thread is taken from its stack. */
enum { BLOCK_M = 256, BLOCK_N = 256, BLOCK_K = 256 };

typedef struct {
    float a[BLOCK_M * BLOCK_K], b[BLOCK_K * BLOCK_N], turned[BLOCK_K * BLOCK_N];
    float c[BLOCK_M * BLOCK_N];
} Blocks;

/* Rows and columns as they are stored, zeros up to `rows_to` and `step`. */
static void copy_block(const Tensor *t, int64_t row, int64_t rows, int64_t column, int64_t n,
                       float *block, int64_t step, int64_t rows_to)
{
    for (int64_t i = 0; i < rows; i++) {
        load_piece(tensor_row(t, row + i), column, n, block + i * step);
        memset(block + i * step + n, 0, (size_t)(step - n) * sizeof *block);
    }
    memset(block + rows * step, 0, (size_t)((rows_to - rows) * step) * sizeof *block);
}

/* Square by square: both sides stay in the first cache. */
static void turn(const float *from, int64_t rows, int64_t columns, int64_t step, float *to,
                 int64_t to_step)
{
    for (int64_t i0 = 0; i0 < rows; i0 += 16)
        for (int64_t j0 = 0; j0 < columns; j0 += 16)
            for (int64_t j = j0; j < least(j0 + 16, columns); j++)
                for (int64_t i = i0; i < least(i0 + 16, rows); i++)
                    to[j * to_step + i] = from[i * step + j];
}

/* c[m, n] of the blocks = or += a[., from .. from + k) b[from .. from + k, .) */
static void add_blocks(const Product *p, Blocks *x, int64_t row, int64_t m, int64_t column,
                       int64_t n, int64_t from, int64_t k)
{
    const Tensor *a = &p->call->in[0], *b = &p->call->in[1];
    const bool ta = p->call->attr.gemm.ta, tb = p->call->attr.gemm.tb;
    const int64_t n_pad = pad_to(n, MICRO_COLUMNS), m_pad = pad_to(m, MICRO_ROWS);
    const bool library = p->sgemm && m > 1 && n > 1;
    if (ta)
        copy_block(a, from, k, row, m, x->a, m_pad, k);
    else
        copy_block(a, row, m, from, k, x->a, k, m_pad);
    if (tb)
        copy_block(b, column, n, from, k, x->b, k, n_pad);
    else
        copy_block(b, from, k, column, n, x->b, n_pad, k);
    if (library) {
        p->sgemm(BLAS_ROWS, ta ? BLAS_TRANSPOSED : BLAS_PLAIN, tb ? BLAS_TRANSPOSED : BLAS_PLAIN,
                 (int)m, (int)n, (int)k, 1, x->a, (int)(ta ? m_pad : k), x->b,
                 (int)(tb ? k : n_pad), from > 0 ? 1 : 0, x->c, (int)n_pad);
        return;
    }
    if (tb) turn(x->b, n_pad, k, k, x->turned, n_pad);
    product(m_pad, n_pad, k, (Matrix){x->a, ta ? 1 : k, ta ? m_pad : 1}, tb ? x->turned : x->b,
            n_pad, x->c, n_pad, from > 0 ? PRODUCT_ADD : PRODUCT_SET);
}

static void block_tile(void *work, int64_t tile)
{
    Product *p = work;
    const Call *call = p->call;
    const Tensor *c = &call->out[0];
    const int64_t across = blocks_of(c->n[1], BLOCK_N), depth = call->in[0].n[!call->attr.gemm.ta];
    const int64_t row = tile / across * BLOCK_M, column = tile % across * BLOCK_N;
    const int64_t m = least(c->n[0] - row, BLOCK_M), n = least(c->n[1] - column, BLOCK_N);
    const int64_t n_pad = pad_to(n, MICRO_COLUMNS);
    float bias[BLOCK_N];
    Blocks *x = aligned_alloc(64, sizeof *x);
    if (!x) {
        atomic_store(&p->no_memory, true);
        return;
    }
    if (depth == 0) memset(x->c, 0, sizeof x->c);
    for (int64_t from = 0; from < depth; from += BLOCK_K)
        add_blocks(p, x, row, m, column, n, from, least(depth - from, BLOCK_K));
    if (call->n_in > 2) load_piece(tensor_row(&call->in[2], 0), column, n, bias);
    for (int64_t i = 0; i < m; i++) {
        float *sum = x->c + i * n_pad;
        for (int64_t j = 0; j < n && call->n_in > 2; j++) sum[j] += bias[j];
        keep_piece(tensor_row(c, row + i), column, n, (float)call->number[0], sum);
    }
    free(x);
}

Err CPU_NAME(gemm)(const Call *call)
{
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const int64_t m = c->n[0], n = c->n[1], depth = a->n[!call->attr.gemm.ta];
    Product p = {.call = call, .sgemm = blas_sgemm()};
    if (m == 0 || n == 0) return OK;
    if (few_rows_fit(call)) return few_rows_gemm(call);
    const Lie lc = lie_of(c);
    if (p.sgemm && m > 1 && n > 1 && depth > 0 && lie_of(a).fits && lie_of(b).fits && lc.fits &&
        !lc.flipped) {
        cut_tiles(&p, m, n);
        team_run(call->team, p.rows.parts * p.columns.parts, library_tile, &p);
    } else {
        team_run(call->team, blocks_of(m, BLOCK_M) * blocks_of(n, BLOCK_N), block_tile, &p);
    }
    if (atomic_load(&p.no_memory))
        return err_fail(
            ERR_NOMEM,
            "no memory for the blocks of a product, %zu bytes for each thread; lower run.threads",
            sizeof(Blocks));
    return OK;
}
