/* macrokernel.c -- the macro-kernel: one C block by one thread, one k block after the other.
 *
 *                        packed B streams by          for each panel of B, read from L3 once:
 *                        +--+--+--+--+--+--+              for each panel of A: micro-kernel
 *                        |  |  |  |  |  |  |
 *                        |  |  |  |  |  |  |          a_in_l1: the two loops are exchanged
 *     A, packed here     +--+--+--+--+--+--+
 *     +---------+        C
 *     +---------+        +--+--+--+--+--+--+          Between k blocks, partial sums wait in the
 *     +---------+        |  |  |  |  |  |  |          packing buffer, in L2, or with those of the
 *     +---------+        +--+--+--+--+--+--+          whole outer block if k is split there too.
 *
 * A is packed right before it is read, so it never leaves L2: that takes half the time of packing
 * it to memory. */
#include "device/cpu/simd/gemm/blocked.h"
#include "device/cpu/simd/gemm/store.h"

/* One k block of a C block: panels of A times panels of B. Indices count within the outer block. */
typedef struct {
    int64_t block, k;
    bool a_packed; /* A of all k blocks is packed already */
    IndexRange rows, columns;
    const uint32_t *a;
    float *sums;      /* of the first panels */
    int64_t row_step; /* floats from one panel of A to the next */
} MacroStep;

/* Panels of the outer block as a block of C; panels at the edge are only partly in C. */
static CBlock c_block_of(const BlockedGemm *g, IndexRange rows, IndexRange columns)
{
    const Tensor *c = &g->call->out[0];
    const int64_t mr = g->kernel->mr, nr = g->kernel->nr;
    const int64_t row = (g->a.panels.first + rows.first) * mr;
    const int64_t column = (g->b.panels.first + columns.first) * nr;
    return (CBlock){row, min_i64(c->n[0] - row, rows.n * mr), column,
                    min_i64(c->n[1] - column, columns.n * nr)};
}

/* The source of A that this thread probably packs next: of the next k block, or of the first k
 * block of the next block of A. */
static Prefetch prefetch_next_a(const BlockedGemm *g, const MacroStep *s)
{
    const int64_t a_block = s->block / g->c_blocks.parts, next = (s->block + 1) / g->c_blocks.parts;
    const Prefetch none = {.row = NULL};
    if (s->k + 1 < g->k_blocks.n)
        return s->a_packed ? none : prefetch_source(g, &g->a, s->k + 1, s->rows);
    if (next == g->a_blocks.parts || (g->a_block_stays && next == a_block)) return none;
    return prefetch_source(g, &g->a, 0, split_range(g->a_blocks, next));
}

/* Operands of the next step: the next k block, or the first k block of the next C block. B only if
 * all of it streams by each panel of A; otherwise a panel of B is read slowly enough for the
 * hardware prefetcher. */
static PrefetchQueue prefetch_next_step(const BlockedGemm *g, const MacroStep *s, int64_t times)
{
    const Microkernel *uk = g->kernel;
    const bool deeper = s->k + 1 < g->k_blocks.n;
    const int64_t k = deeper ? s->k + 1 : 0, j = s->columns.first + (deeper ? 0 : s->columns.n);
    const int64_t dwords = k_block_dwords(g, g->k_blocks.first + k);
    const int64_t panels = min_i64(s->columns.n, g->b.panels.n - j);
    PrefetchQueue q = {.c.left = 0};
    if (!g->a.packed)
        q.a = prefetch_next_a(g, s);
    else if (g->k_blocks.n > 1)
        q.a = prefetch_dwords(panel_at(g, &g->a, k, s->rows.first), s->rows.n * uk->mr * dwords);
    if (uk->a_in_l1) q.b = prefetch_dwords(panel_at(g, &g->b, k, j), panels * uk->nr * dwords);
    prefetch_spread(&q.a, times);
    prefetch_spread(&q.b, times);
    return q;
}

static void multiply_step(const BlockedGemm *g, const MacroStep *s, StorePipeline *pipeline)
{
    const Microkernel *uk = g->kernel;
    const int64_t k_block = g->k_blocks.first + s->k, n = s->rows.n * s->columns.n;
    const bool last = k_block == g->n_k_blocks - 1 && g->epilogue->part != GEMM_MULTIPLY;
    TileStore store = {.call = g->call,
                       .epilogue = g->epilogue,
                       .addend = g->epilogue->addend ? g->epilogue->addend : &g->call->out[0],
                       .step = uk->nr};
    const int64_t dwords = k_block_dwords(g, k_block);
    PrefetchQueue prefetch =
        prefetch_next_step(g, s, max_i64(1, n * blocks_of(dwords, PREFETCH_DWORDS)));
    MicrokernelArgs args = {.dwords = dwords, .add = k_block > 0, .prefetch = &prefetch};
    for (int64_t t = 0, before = -1; t < n; t++) {
        const int64_t i = uk->a_in_l1 ? t / s->columns.n : t % s->rows.n;
        const int64_t j = uk->a_in_l1 ? t % s->columns.n : t / s->rows.n;
        const IndexRange column = {s->columns.first + j, 1};
        args.a = s->a + i * uk->mr * args.dwords;
        args.b = panel_at(g, &g->b, s->k, column.first);
        args.c = s->sums + i * s->row_step + j * uk->mr * uk->nr;
        if (last && j != before) tile_store_bias(&store, c_block_of(g, s->rows, column));
        before = j;
        store.block = c_block_of(g, (IndexRange){s->rows.first + i, 1}, column);
        if (last) *store_pipeline_next(pipeline) = store;
        store_pipeline_multiply(pipeline, &args, last);
    }
    if (!last) return;
    store_pipeline_flush(pipeline);
    if (g->epilogue->run)
        g->epilogue->run(g->epilogue->call, c_block_of(g, s->rows, s->columns), NULL);
}

/* A free packing buffer: one that already has the block of A, else any. */
static PackingBuffer *take_buffer(BlockedGemm *g, int64_t a_block)
{
    for (int i = 0;; i++) {
        PackingBuffer *const b = &g->buffer[i % g->n_buffers];
        if (i < g->n_buffers && atomic_load_explicit(&b->a_block, memory_order_relaxed) != a_block)
            continue;
        if (!atomic_exchange_explicit(&b->busy, true, memory_order_acquire)) return b;
    }
}

void multiply_c_block(void *gemm, int64_t block)
{
    BlockedGemm *g = gemm;
    const Microkernel *uk = g->kernel;
    const int64_t a_block = block / g->c_blocks.parts, tile = uk->mr * uk->nr;
    MacroStep s = {.block = block,
                   .rows = split_range(g->a_blocks, a_block),
                   .columns = split_range(g->c_blocks, block % g->c_blocks.parts)};
    PackingBuffer *const buffer = take_buffer(g, a_block);
    s.a_packed = g->a.packed || !gemm_packs(g) ||
                 atomic_load_explicit(&buffer->a_block, memory_order_relaxed) == a_block;
    StorePipeline pipeline = {.kernel = uk};
    s.row_step = (g->c_between_k ? g->b.panels.n : s.columns.n) * tile;
    s.sums = g->c_between_k ? g->c_between_k + s.rows.first * s.row_step + s.columns.first * tile
                            : buffer->c_accumulators;
    uk->begin();
    for (s.k = 0; s.k < g->k_blocks.n; s.k++) {
        uint32_t *const own =
            buffer->a + (g->a_block_stays ? s.k * g->kc_dwords * s.rows.n * uk->mr : 0);
        if (!s.a_packed) pack_panels(g, &g->a, s.k, s.rows, own);
        s.a = g->a.packed ? panel_at(g, &g->a, s.k, s.rows.first) : own;
        if (g->epilogue->part != GEMM_PACK) multiply_step(g, &s, &pipeline);
    }
    uk->end();
    atomic_store_explicit(&buffer->a_block, g->a_block_stays ? a_block : -1, memory_order_relaxed);
    atomic_store_explicit(&buffer->busy, false, memory_order_release);
}
