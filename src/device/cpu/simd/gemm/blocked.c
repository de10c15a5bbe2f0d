/* blocked.c -- blocked GEMM: the loop over outer blocks, and the packing of B by the team.
 *
 *                   B, packed into NR-column panels        1. the team packs B of the outer block,
 *                   +--+--+--+--+--+--+--+                    each dword once
 *                   |  |  |  |  |  |  |  |                 2. each thread takes one C block after
 *                   +--+--+--+--+--+--+--+                    the other, and packs the block of A
 *     A             C                                         that it needs, unless it is packed
 *     +---------+   +---------+----------+                    already: macrokernel.c
 *     | A block |   | C block |          |
 *     +---------+   +---------+----------+      Packed B stays in L3. A large k is split over outer
 *     |         |   |         |          |      blocks too; partial sums wait between them.
 *     +---------+   +---------+----------+
 *
 * Block sizes follow from the shape and, where there is little work, from the number of threads.
 * Each element of C is one chain of additions in one order for all block sizes (microkernel.h), so
 * they affect only speed. */
#include "device/cpu/simd/gemm/blocked.h"
#include "device/cpu/workspace.h"

/* Columns of a C block by the way A is packed:
 *     NC            the block of A stays in the packing buffer, which holds at least half of the
 *                   micro-kernel's mc rows for all k
 *     NC_REPACK     larger k: A is packed again for each C block, so C blocks are wider
 *     NC            larger k, and the team packs A (team_packs_a): C blocks of MC_TEAM rows
 * SUM_FLOATS: capacity for the partial sums of any C block. */
enum { NC = 256, NC_REPACK = 768, MC_TEAM = 256, SUM_FLOATS = MC_TEAM * NC };
/* Packed dwords of B in an outer block: 8 MiB, which stay in L3 even if other processes use it too.
 * OUTER_DWORDS_BOTH: the limit of each operand if the team packs A as well. */
enum { OUTER_DWORDS = 2 << 20, OUTER_DWORDS_BOTH = 4 << 20 };
/* Dwords along k of an outer block: all, up to MAX_WHOLE_K; else about OUTER_K. */
enum { MAX_WHOLE_K = 4096, OUTER_K = 2048 };
/* Panels per packing task, at most; packing tasks per thread, at least. */
enum { PACK_PANELS = 8, PACKS_PER_THREAD = 4 };
/* C blocks per thread, at least: the last to finish idles the others for about half a block. */
enum { C_BLOCKS_PER_THREAD = 8 };
/* Cost of a row relative to a column of a C block where rows are packed again for each C block,
 * while packed columns are only read. */
enum { REPACK_COST = 8 };

/* Size of a C block in micro-panels: of A (rows) and of B (columns). */
typedef struct {
    int64_t a_panels, b_panels;
} CBlockSize;

/* Packing tasks of a k block: each packs some panels. */
static EvenSplit packing_tasks(const BlockedGemm *g, const GemmOperand *o)
{
    const int64_t threads = g->n_buffers, panels = o->panels.n;
    const int64_t enough = threads == 1 ? 1 : blocks_of(PACKS_PER_THREAD * threads, g->k_blocks.n);
    return (EvenSplit){panels, min_i64(panels, max_i64(enough, blocks_of(panels, PACK_PANELS)))};
}

static void run_packing_task(const BlockedGemm *g, const GemmOperand *o, int64_t task)
{
    const int64_t k = task % g->k_blocks.n;
    const IndexRange panels = split_range(packing_tasks(g, o), task / g->k_blocks.n);
    pack_panels(g, o, k, panels, panel_at(g, o, k, panels.first));
}

static void pack_a(void *work, int64_t task)
{
    const BlockedGemm *g = work;
    run_packing_task(g, &g->a, task);
}

static void pack_b(void *work, int64_t task)
{
    const BlockedGemm *g = work;
    run_packing_task(g, &g->b, task);
}

static PackOperand operand_of(const Tensor *t, bool mn_first)
{
    const int mn = mn_first ? 0 : 1;
    return (PackOperand){t->data, t->dtype, t->n[mn], t->n[!mn], t->stride[mn], t->stride[!mn]};
}

/* Sets the k blocks of the GEMM and of an outer block. kc is rounded up to 16 dwords. */
static void split_k(BlockedGemm *g)
{
    const Microkernel *uk = g->kernel;
    const int64_t per_dword = uk->type == BF16 ? 2 : 1;
    g->k_dwords = blocks_of(blocks_of(g->b.matrix.k, per_dword), uk->k_group) * uk->k_group;
    g->n_k_blocks = max_i64(1, blocks_of(g->k_dwords, uk->kc));
    g->kc_dwords = blocks_of(blocks_of(g->k_dwords, g->n_k_blocks), 16) * 16;
    g->n_k_blocks = max_i64(1, blocks_of(g->k_dwords, g->kc_dwords == 0 ? 1 : g->kc_dwords));
    const int64_t outer = g->k_dwords <= MAX_WHOLE_K ? 1 : blocks_of(g->k_dwords, OUTER_K);
    g->k_blocks = (IndexRange){0, blocks_of(g->n_k_blocks, outer)};
}

/* True if a block of A fits the packing buffer for all k of an outer block. panels: its height. */
static bool a_block_fits(const BlockedGemm *g, int64_t *panels)
{
    const Microkernel *uk = g->kernel;
    const int64_t dwords = max_i64(1, g->k_blocks.n * g->kc_dwords), wanted = uk->mc / uk->mr;
    const int64_t fit = uk->a_buffer_dwords / (dwords * uk->mr);
    *panels = min_i64(wanted, fit);
    return 2 * fit >= wanted;
}

static CBlockSize c_block_size(const BlockedGemm *g)
{
    const Microkernel *uk = g->kernel;
    const int64_t columns = blocks_of(g->b.matrix.mn, uk->nr);
    const int64_t repack_panels = min_i64(columns, NC_REPACK / uk->nr);
    int64_t panels;
    if (a_block_fits(g, &panels)) return (CBlockSize){panels, NC / uk->nr};
    if (uk->team_packs_a) return (CBlockSize){MC_TEAM / uk->mr, NC / uk->nr};
    return (CBlockSize){min_i64(uk->mc, SUM_FLOATS / (repack_panels * uk->nr)) / uk->mr,
                        repack_panels};
}

/* Splits the outer block into C blocks. They are halved until each thread has several, and rows are
 * split into a multiple of the number of threads. */
static void split_outer_block(BlockedGemm *g, CBlockSize size, int64_t threads)
{
    const Microkernel *uk = g->kernel;
    const int64_t rows = g->a.panels.n, columns = g->b.panels.n;
    const int64_t row_cost = g->a.packed || g->a_block_stays ? 1 : REPACK_COST;
    for (;;) {
        const int64_t a_blocks = blocks_of(blocks_of(rows, size.a_panels), threads) * threads;
        g->a_blocks = (EvenSplit){rows, min_i64(rows, a_blocks)};
        g->c_blocks = (EvenSplit){columns, blocks_of(columns, size.b_panels)};
        const bool enough = g->a_blocks.parts * g->c_blocks.parts >= C_BLOCKS_PER_THREAD * threads;
        if (threads == 1 || enough || size.a_panels + size.b_panels <= 4) return;
        const bool columns_dominate = size.a_panels * uk->mr * row_cost < size.b_panels * uk->nr;
        const bool halve_rows = size.b_panels == 1 || (size.a_panels > 1 && !columns_dominate);
        int64_t *const side = halve_rows ? &size.a_panels : &size.b_panels;
        *side = blocks_of(*side, 2);
    }
}

/* Panels of an operand in an outer block of at most `dwords`: a multiple of `per`, or `all`. */
static int64_t outer_panels(int64_t all, int64_t per, int64_t panel_dwords, int64_t dwords)
{
    return min_i64(all, max_i64(1, dwords / max_i64(1, panel_dwords) / per) * per);
}

/* new_a, new_b: the packed operand of the outer block before is of no use. */
static void run_outer_block(BlockedGemm *g, CBlockSize size, bool new_a, bool new_b)
{
    Team *const team = g->call->team;
    if (new_b && !g->b.prepacked_panels && gemm_packs(g))
        team_run(team, packing_tasks(g, &g->b).parts * g->k_blocks.n, pack_b, g);
    if (new_a && g->a.packed && gemm_packs(g))
        team_run(team, packing_tasks(g, &g->a).parts * g->k_blocks.n, pack_a, g);
    for (int i = 0; i < g->n_buffers; i++) atomic_store(&g->buffer[i].a_block, -1);
    split_outer_block(g, size, team_threads(team));
    team_run(team, g->a_blocks.parts * g->c_blocks.parts, multiply_c_block, g);
}

/* Loops over all outer blocks; on entry g has the sizes of the first. k is innermost, so partial
 * sums of one range of rows and columns suffice. */
static void run_outer_blocks(BlockedGemm *g, CBlockSize size)
{
    const int64_t all_a = blocks_of(g->a.matrix.mn, g->kernel->mr), some_a = g->a.panels.n;
    const int64_t all_b = blocks_of(g->b.matrix.mn, g->kernel->nr), some_b = g->b.panels.n;
    const int64_t some_k = g->k_blocks.n;
    const bool k_is_split = some_k < g->n_k_blocks;
    for (int64_t j = 0; j < all_b; j += some_b)
        for (int64_t i = 0; i < all_a; i += some_a)
            for (int64_t k = 0; k < g->n_k_blocks; k += some_k) {
                g->b.panels = (IndexRange){j, min_i64(some_b, all_b - j)};
                g->a.panels = (IndexRange){i, min_i64(some_a, all_a - i)};
                g->k_blocks = (IndexRange){k, min_i64(some_k, g->n_k_blocks - k)};
                run_outer_block(g, size, j == 0 || k_is_split || some_a < all_a,
                                i == 0 || k_is_split);
            }
}

/* Bytes of `dwords` dwords, rounded up to a cache line. */
static size_t line_bytes(int64_t dwords) { return (size_t)blocks_of(dwords, 16) * 64; }

/* Lays out the workspace: packed B, packed A, partial sums, packing buffers, their list. Returns
 * its bytes; sets pointers unless base is NULL. */
static size_t lay_out(BlockedGemm *g, bool with_a, char *base)
{
    const int64_t dwords = g->k_blocks.n * g->kc_dwords;
    const int64_t rows = g->a.panels.n * g->kernel->mr, columns = g->b.panels.n * g->kernel->nr;
    const bool partial = g->k_blocks.n < g->n_k_blocks;
    const size_t at_a = g->b.prepacked_panels ? 0 : line_bytes(columns * dwords);
    const size_t at_partial = at_a + (with_a ? line_bytes(rows * dwords) : 0);
    const size_t at_buffers = at_partial + (partial ? line_bytes(rows * columns) : 0);
    const size_t each = line_bytes(g->kernel->a_buffer_dwords) + line_bytes(SUM_FLOATS);
    const size_t at_list = at_buffers + (size_t)g->n_buffers * each;
    if (base) {
        if (!g->b.prepacked_panels) g->b.packed = (uint32_t *)(void *)base;
        g->a.packed = with_a ? (uint32_t *)(void *)(base + at_a) : NULL;
        g->c_between_k = partial ? (float *)(void *)(base + at_partial) : NULL;
        g->buffer = (PackingBuffer *)(void *)(base + at_list);
    }
    for (int i = 0; base && i < g->n_buffers; i++) {
        char *const at = base + at_buffers + (size_t)i * each;
        g->buffer[i].a = (uint32_t *)(void *)at;
        g->buffer[i].c_accumulators =
            (float *)(void *)(at + line_bytes(g->kernel->a_buffer_dwords));
        atomic_init(&g->buffer[i].busy, false);
        atomic_init(&g->buffer[i].a_block, -1);
    }
    return at_list + (size_t)g->n_buffers * sizeof *g->buffer;
}

static GemmOperand operand_b(const Tensor *b, bool mn_first, const Microkernel *uk)
{
    return (GemmOperand){.matrix = operand_of(b, mn_first), .shape = {uk->type, uk->nr, 1}};
}

/* Uses B as `prepack` has packed it; the layout follows from k, n and the micro-kernel. Operands of
 * two types are multiplied in f32, for which B was not packed. */
static void take_prepacked(BlockedGemm *g)
{
    const Call *c = g->call;
    if (!c->prepacked || c->in[0].dtype != c->in[1].dtype) return;
    g->b.packed = (uint32_t *)c->prepacked; /* only read from here on */
    g->b.prepacked_panels = g->b.panels.n;
}

Err blocked_gemm(const Call *call, const Microkernel *kernel, const BlockEpilogue *epilogue)
{
    BlockedGemm g = {.call = call, .kernel = kernel, .epilogue = epilogue};
    Workspace *w;
    int64_t panels;
    g.n_buffers = team_threads(call->team);
    g.a = (GemmOperand){.matrix = operand_of(&call->in[0], !call->attr.gemm.ta),
                        .shape = {kernel->type, kernel->mr, kernel->k_group}};
    g.b = operand_b(&call->in[1], call->attr.gemm.tb, kernel);
    split_k(&g);
    g.a_block_stays = a_block_fits(&g, &panels);
    const CBlockSize size = c_block_size(&g);
    const int64_t outer_k_dwords = g.k_blocks.n * g.kc_dwords;
    const bool both = !g.a_block_stays && kernel->team_packs_a; /* the team packs A too */
    const int64_t dwords = both ? OUTER_DWORDS_BOTH : OUTER_DWORDS;
    g.a.panels.n = blocks_of(g.a.matrix.mn, kernel->mr);
    g.b.panels.n = blocks_of(g.b.matrix.mn, kernel->nr);
    take_prepacked(&g);
    g.b.panels.n = outer_panels(g.b.panels.n, size.b_panels, kernel->nr * outer_k_dwords, dwords);
    /* Bounds packed A and the partial sums, which would grow with the number of rows. */
    if (both || g.k_blocks.n < g.n_k_blocks)
        g.a.panels.n =
            outer_panels(g.a.panels.n, size.a_panels, kernel->mr * outer_k_dwords, dwords);
    TRY(workspace_take(lay_out(&g, both, NULL), "a GEMM", &w));
    lay_out(&g, both, w->at);
    run_outer_blocks(&g, size);
    workspace_give(w);
    return OK;
}

/* A GEMM whose one outer block is all of B. */
static BlockedGemm all_of_b(const Call *call)
{
    const Microkernel *uk = microkernel_for(call->in[0].dtype);
    BlockedGemm g = {.call = call, .kernel = uk, .n_buffers = team_threads(call->team)};
    g.b = operand_b(&call->in[0], call->attr.gemm.tb, uk);
    split_k(&g);
    g.k_blocks = (IndexRange){0, g.n_k_blocks};
    g.b.panels.n = blocks_of(g.b.matrix.mn, uk->nr);
    return g;
}

size_t CPU_NAME(prepacked_bytes)(DType type, int64_t k, int64_t n)
{
    const BlockedGemm g = all_of_b(&(Call){.in = {{.dtype = type, .ndim = 2, .n = {k, n}}}});
    return line_bytes(g.k_dwords * g.b.panels.n * g.kernel->nr);
}

int64_t blocked_prepack_tasks(const Call *call)
{
    const BlockedGemm g = all_of_b(call);
    return g.k_dwords > 0 ? packing_tasks(&g, &g.b).parts * g.k_blocks.n : 0;
}

void blocked_prepack(const Call *call, int64_t task)
{
    BlockedGemm g = all_of_b(call);
    g.b.packed = call->out[0].data;
    run_packing_task(&g, &g.b, task);
}

Err CPU_NAME(prepack)(const Call *call)
{
    BlockedGemm g = all_of_b(call);
    g.b.packed = call->out[0].data;
    if (g.b.panels.n > 0 && g.k_dwords > 0)
        team_run(call->team, packing_tasks(&g, &g.b).parts * g.k_blocks.n, pack_b, &g);
    return OK;
}

/* A micro-kernel for GEMM_STORE: stores zeros without multiplying. */
static void store_zeros(const MicrokernelArgs *m)
{
    const V zero[1][2] = {{{0}}};
    if (!m->store) return;
    MicrokernelStore s = *m->store;
    for (int i = 0; i < s.rows; i++, s.c += s.c_step, s.addend += s.addend_step)
        store_tile(&s, zero, 1);
}

Err CPU_NAME(gemm_part)(const Call *call, GemmPart part)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    Microkernel kernel = *microkernel_for(narrow ? BF16 : F32);
    if (part == GEMM_STORE) {
        kernel.multiply = store_zeros;
        kernel.overlaps_stores = false;
    }
    return blocked_gemm(call, &kernel, &(BlockEpilogue){.part = part});
}
