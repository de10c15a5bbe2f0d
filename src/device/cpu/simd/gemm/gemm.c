/* gemm.c -- dispatch of a GEMM to the fastest path for its operands.
 *
 *     skinny.h           at most MAX_SKINNY_ROWS rows of A, rows of B contiguous
 *     BLAS library       if one is open (blas.h): f32, rows or columns contiguous. C is split into
 *                        tiles by its shape, each multiplied by one thread
 *     blocked_gemm       everything else: bf16, other strides, one row or column, no library
 *
 * The order of a sum over k is that of the path, which follows from the shape of the call. The
 * library adds to the accumulator term by term; our own paths add complete sums. */
#include "device/cpu/simd/gemm/gemm.h"
#include "device/cpu/simd/gemm/skinny.h"

#include "device/cpu/blas.h"

/* n rows or columns in `parts` parts of nearly equal size, with borders at multiples of 16. */
typedef struct {
    int64_t n, parts;
} LibrarySplit;

static int64_t library_split_at(LibrarySplit s, int64_t part)
{
    return part == s.parts ? s.n : s.n * part / s.parts / 16 * 16;
}

typedef struct {
    const Call *call;
    LibrarySplit rows, columns;
    Sgemm sgemm; /* or NULL */
} LibraryGemm;

/* Tiles of about 512 x 1024: the library packs the operands of each tile, and reaches 96% of its
 * speed on the whole GEMM (90% with 256 x 256). If there are fewer than 12 tiles, they are halved
 * down to 256, so that many threads have work. */
static void split_tiles(LibraryGemm *g, int64_t m, int64_t n)
{
    g->rows = (LibrarySplit){m, blocks_of(m, 512)};
    g->columns = (LibrarySplit){n, blocks_of(n, 1024)};
    while (g->rows.parts * g->columns.parts < 12) {
        const int64_t height = m / g->rows.parts, width = n / g->columns.parts;
        if (width < 256 && height < 256) break;
        if (width >= height)
            g->columns.parts *= 2;
        else
            g->rows.parts *= 2;
    }
}

/* A tensor in BLAS's terms: ld is the leading dimension, the stride of rows or, if the tensor is
 * transposed in memory, of columns. fits: BLAS can describe the tensor at all. */
typedef struct {
    bool fits, transposed;
    int64_t ld;
} BlasLayout;

static BlasLayout blas_layout(const Tensor *t)
{
    if (t->dtype != F32) return (BlasLayout){.fits = false};
    if (t->stride[1] == 1 && t->stride[0] >= t->n[1])
        return (BlasLayout){true, false, t->stride[0]};
    if (t->stride[0] == 1 && t->stride[1] >= t->n[0]) return (BlasLayout){true, true, t->stride[1]};
    return (BlasLayout){.fits = false};
}

static const float *element(const Tensor *t, bool transposed, int64_t row, int64_t column)
{
    return (const float *)t->data + row * t->stride[transposed] + column * t->stride[!transposed];
}

/* c = keep * c + bias; sgemm then only adds the product. */
static void start_from_bias(const LibraryGemm *g, int64_t row, int64_t m, int64_t column, int64_t n)
{
    const Call *call = g->call;
    const Tensor *c = &call->out[0];
    float bias[PIECE];
    for (int64_t from = column; from < column + n; from += PIECE) {
        const int64_t part = min_i64(column + n - from, PIECE);
        load_piece(tensor_row(&call->in[2], 0), from, part, bias);
        for (int64_t i = row; i < row + m; i++)
            keep_piece(tensor_row(c, i), from, part, (float)call->number[0], bias);
    }
}

static void library_tile(void *work, int64_t tile)
{
    const LibraryGemm *g = work;
    const Call *call = g->call;
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const bool ta = call->attr.gemm.ta, tb = call->attr.gemm.tb, bias = call->n_in > 2;
    const int64_t i = tile / g->columns.parts, j = tile % g->columns.parts;
    const int64_t row = library_split_at(g->rows, i), m = library_split_at(g->rows, i + 1) - row;
    const int64_t column = library_split_at(g->columns, j),
                  n = library_split_at(g->columns, j + 1) - column;
    const BlasLayout la = blas_layout(a), lb = blas_layout(b);
    if (bias) start_from_bias(g, row, m, column, n);
    g->sgemm(BLAS_ROWS, la.transposed != ta ? BLAS_TRANSPOSED : BLAS_PLAIN,
             lb.transposed != tb ? BLAS_TRANSPOSED : BLAS_PLAIN, (int)m, (int)n, (int)a->n[!ta], 1,
             element(a, ta, row, 0), (int)la.ld, element(b, tb, 0, column), (int)lb.ld,
             bias ? 1 : (float)call->number[0], (float *)element(c, false, row, column),
             (int)c->stride[0]);
}

static bool library_fits(const Call *call)
{
    const Tensor *a = &call->in[0], *b = &call->in[1], *c = &call->out[0];
    const BlasLayout lc = blas_layout(c);
    return blas_sgemm() && c->n[0] > 1 && c->n[1] > 1 && a->n[!call->attr.gemm.ta] > 0 &&
           blas_layout(a).fits && blas_layout(b).fits && lc.fits && !lc.transposed;
}

/* The whole GEMM first, then the epilogue on all of C: for paths that do not run epilogues per
 * block. */
static Err gemm_then_epilogue(const Call *call, const BlockEpilogue *epilogue)
{
    const Tensor *c = &call->out[0], *addend = epilogue->addend;
    if (addend && addend->data != c->data) {
        const Call start = {
            .in = {*addend}, .n_in = 1, .out = {*c}, .n_out = 1, .team = call->team};
        TRY(CPU_NAME(copy)(&start));
    }
    if (skinny_fits(call)) {
        TRY(skinny_gemm(call));
    } else {
        LibraryGemm g = {.call = call, .sgemm = blas_sgemm()};
        split_tiles(&g, c->n[0], c->n[1]);
        team_run(call->team, g.rows.parts * g.columns.parts, library_tile, &g);
    }
    if (epilogue->run) epilogue->run(epilogue->call, (CBlock){0, c->n[0], 0, c->n[1]}, call->team);
    return OK;
}

Err gemm_with_epilogue(const Call *call, const BlockEpilogue *epilogue)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    if (call->out[0].n[0] == 0 || call->out[0].n[1] == 0) return OK;
    if (skinny_fits(call) || library_fits(call)) return gemm_then_epilogue(call, epilogue);
    return blocked_gemm(call, microkernel_for(narrow ? BF16 : F32), epilogue);
}

Err CPU_NAME(gemm)(const Call *call)
{
    return gemm_with_epilogue(call, &(BlockEpilogue){.addend = NULL});
}
