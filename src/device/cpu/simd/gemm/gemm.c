/* gemm.c -- products of large matrices: c cut into tiles by its shape, each the work of one thread.
 *
 * f32 whose rows or columns are contiguous goes to the library as it lies. Anything else (bf16,
 * other strides, one row or column, no library) is packed and multiplied by our own kernels:
 * panels.c. A few rows times a matrix are few_rows.c's.
 *
 * Sums over k are in the order of whoever multiplies, which follows from the shape of the call; the
 * library adds to an accumulator as it goes, ours are added when they are whole. */
#include "device/cpu/simd/gemm/skinny.h"
#include "device/cpu/simd/gemm/panels.h"

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

static bool library_fits(const Call *call)
{
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const Lie lc = lie_of(c);
    return blas_sgemm() && c->n[0] > 1 && c->n[1] > 1 && a->n[!call->attr.gemm.ta] > 0 &&
           lie_of(a).fits && lie_of(b).fits && lc.fits && !lc.flipped;
}

/* The product first, then what is beside it: where the product is not ours to take part in. */
static Err one_by_one(const Call *call, const Beside *beside)
{
    const Tensor *c = &call->out[0], *addend = beside->addend;
    if (addend && addend->data != c->data) {
        const Call start = {
            .in = {*addend}, .n_in = 1, .out = {*c}, .n_out = 1, .team = call->team};
        TRY(CPU_NAME(copy)(&start));
    }
    if (skinny_fits(call)) {
        TRY(skinny_gemm(call));
    } else {
        Product p = {.call = call, .sgemm = blas_sgemm()};
        cut_tiles(&p, c->n[0], c->n[1]);
        team_run(call->team, p.rows.parts * p.columns.parts, library_tile, &p);
    }
    if (beside->then) beside->then(beside->call, (Box){0, c->n[0], 0, c->n[1]}, call->team);
    return OK;
}

Err gemm_with(const Call *call, const Beside *beside)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    if (call->out[0].n[0] == 0 || call->out[0].n[1] == 0) return OK;
    if (skinny_fits(call) || library_fits(call)) return one_by_one(call, beside);
    return panels_gemm(call, microkernel_for(narrow ? BF16 : F32), beside);
}

Err CPU_NAME(gemm)(const Call *call) { return gemm_with(call, &(Beside){.addend = NULL}); }
