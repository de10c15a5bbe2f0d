/* blocked.h -- state of a blocked GEMM: set up in blocked.c, used in macrokernel.c.
 *
 *     level         extent                               operand that stays in a cache
 *     outer block   columns: as many as 8 MiB of B       packed B, in L3; packed by the team
 *                   rows: all (*)
 *                   k: all, or about OUTER_K
 *     C block       MC rows x NC columns, one task       its block of A, MC x KC or MC x k, in L2;
 *                                                        packed by the thread of the task
 *     k block       KC                                   C block's sums between k blocks, in L2
 *     micro-tile    MR x NR, one call of the             a micro-panel of B, KC x NR, in L1, while
 *                   micro-kernel                         panels of A stream (a_in_l1: the reverse)
 *
 * (*) Rows are limited like columns if k is split into outer blocks or if the team packs A. NC is
 * the width of a C block, not BLIS's NC: that is the width of the outer block. The constants are in
 * blocked.c, MC and KC in Microkernel.
 *
 * Extents along k are counted in dwords: a dword is 1 f32 or 2 bf16 (pack.h).
 *
 * The thread that takes a C block packs its block of A into a packing buffer. If all k blocks of
 * the outer block fit, the block of A stays in the buffer for the other C blocks of the same rows.
 * Else A is packed one k block after the other, again for each C block. The source of A is
 * prefetched one k block ahead. Some micro-kernels are so fast that repacking A per C block would
 * dominate (team_packs_a). For these the team packs A as it packs B. */
#ifndef DEVICE_CPU_SIMD_GEMM_BLOCKED_H
#define DEVICE_CPU_SIMD_GEMM_BLOCKED_H

#include <stdatomic.h>
#include "device/cpu/simd/gemm/gemm.h"

/* Consecutive micro-panels of an operand, or consecutive k blocks. */
typedef struct {
    int64_t first, n;
} IndexRange;

/* n items in `parts` parts of nearly equal size; part i is [split_at(i), split_at(i + 1)). */
typedef struct {
    int64_t n, parts;
} EvenSplit;

static inline int64_t split_at(EvenSplit s, int64_t part) { return s.n * part / s.parts; }

static inline IndexRange split_range(EvenSplit s, int64_t part)
{
    return (IndexRange){split_at(s, part), split_at(s, part + 1) - split_at(s, part)};
}

/* A or B, and the part of it in the current outer block. */
typedef struct {
    PackOperand matrix;
    PanelShape shape;
    IndexRange panels; /* micro-panels of the outer block */
    /* [k block][panel][dwords][width]. Packed by the team: k blocks and panels of the outer block.
     * Prepacked: those of the whole operand. NULL, for A: each thread packs its own block. */
    uint32_t *packed;
    int64_t prepacked_panels; /* of the whole operand, packed before the call; 0: not prepacked */
} GemmOperand;

/* Buffers of one C block. A task takes a free one, preferably one that has its block of A, by
 * setting `busy`; there are as many as threads, so one is always free. */
typedef struct {
    atomic_bool busy;
    atomic_llong a_block;  /* the block of A that is fully packed in `a` (all k); -1: none */
    uint32_t *a;           /* [a_buffer_dwords of the micro-kernel] packed block of A */
    float *c_accumulators; /* sums of the C block between its k blocks, by micro-tile */
} PackingBuffer;

typedef struct {
    const Call *call;
    const Microkernel *kernel;
    const BlockEpilogue *epilogue;
    GemmOperand a, b;
    int64_t k_dwords;   /* k of the whole GEMM, rounded up to the micro-kernel's k_group */
    int64_t kc_dwords;  /* KC: dwords of all k blocks but the last, which may have fewer */
    int64_t n_k_blocks; /* of the whole GEMM */

    IndexRange k_blocks; /* of the current outer block */
    EvenSplit a_blocks;  /* micro-panels of A in the outer block, split into blocks of A */
    EvenSplit c_blocks;  /* micro-panels of B in it, split; each part x block of A is a C block */
    bool a_block_stays;  /* all k blocks of a block of A fit into the packing buffer */
    /* Sums of the rows and columns of an outer block, by micro-tile, between outer blocks along k;
     * NULL: k is not split into outer blocks. */
    float *c_between_k;

    PackingBuffer *buffer;
    int n_buffers; /* the number of threads */
} BlockedGemm;

/* One symbol per instruction set: simd.h. */
#define multiply_c_block CPU_NAME(multiply_c_block)

/* Dwords of k block `k` of the whole GEMM. */
static inline int64_t k_block_dwords(const BlockedGemm *g, int64_t k)
{
    return min_i64(g->kc_dwords, g->k_dwords - k * g->kc_dwords);
}

/* A packed micro-panel; k block and panel are counted within the outer block. */
static inline uint32_t *panel_at(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                                 int64_t panel)
{
    const int64_t dwords = k_block_dwords(g, g->k_blocks.first + k);
    if (o->prepacked_panels == 0)
        return o->packed + o->shape.width * (k * g->kc_dwords * o->panels.n + panel * dwords);
    const int64_t before = (g->k_blocks.first + k) * g->kc_dwords * o->prepacked_panels;
    return o->packed + o->shape.width * (before + (o->panels.first + panel) * dwords);
}

/* Packs micro-panels of one k block, both counted within the outer block. */
static inline void pack_panels(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                               IndexRange panels, uint32_t *to)
{
    const int64_t k_block = g->k_blocks.first + k;
    const PanelPart part = {(o->panels.first + panels.first) * o->shape.width,
                            k_block * g->kc_dwords, k_block_dwords(g, k_block)};
    panels_pack(&o->matrix, o->shape, part, panels.n, to);
}

/* The memory that pack_panels will read; empty if it is contiguous along neither k nor mn. */
static inline Prefetch prefetch_source(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                                       IndexRange panels)
{
    const int64_t k_block = g->k_blocks.first + k, per_dword = o->shape.type == BF16 ? 2 : 1;
    const PackOperand *x = &o->matrix;
    const int64_t size = (int64_t)dtype_bytes(x->dtype);
    const int64_t mn_at = (o->panels.first + panels.first) * o->shape.width,
                  k_at = k_block * g->kc_dwords * per_dword;
    const int64_t mn = min_i64(panels.n * o->shape.width, x->mn - mn_at);
    const int64_t n_k = min_i64(k_block_dwords(g, k_block) * per_dword, x->k - k_at);
    const char *const at = x->at + (mn_at * x->mn_stride + k_at * x->k_stride) * size;
    if (x->k_stride == 1) return prefetch_rows(at, n_k * size, mn, x->mn_stride * size);
    if (x->mn_stride == 1) return prefetch_rows(at, mn * size, n_k, x->k_stride * size);
    return (Prefetch){.row = NULL};
}

/* True for GEMMs, and for the benchmark that times packing alone; the benchmarks that time
 * multiplying and storing alone do not pack. */
static inline bool gemm_packs(const BlockedGemm *g)
{
    return g->epilogue->part == GEMM_WHOLE || g->epilogue->part == GEMM_PACK;
}

/* Local. Task of team_run: computes C block number `block` of the outer block. The C blocks of one
 * block of A have consecutive numbers. */
void multiply_c_block(void *gemm, int64_t block);

#endif
