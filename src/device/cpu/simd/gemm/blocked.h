/* blocked.h -- a blocked GEMM: the state that blocked.c sets up and macrokernel.c multiplies with.
 *
 *     level          extent                                      packed by          stays in
 *     outer block    some rows, some columns, some k blocks      B: the team        L3
 *     C block        MC rows x NC columns, one task              A: its thread      L2
 *     micro-tile     MR x NR, one call of the micro-kernel       -                  registers
 *
 * The thread that takes a C block packs its block of A into its own packing buffer. If all k blocks
 * fit, the block of A stays in the buffer for the other C blocks of the same rows. Else A is packed
 * one k block after the other, again for each C block. The source of A is prefetched one k block
 * ahead. For micro-kernels that are too fast for packing A again (team_packs_a), the team packs A
 * as it packs B. */
#ifndef DEVICE_CPU_SIMD_GEMM_BLOCKED_H
#define DEVICE_CPU_SIMD_GEMM_BLOCKED_H

#include <stdatomic.h>
#include "device/cpu/simd/gemm/gemm.h"

/* Consecutive micro-panels of an operand, or consecutive k blocks. */
typedef struct {
    int64_t first, n;
} IndexRange;

/* n items in `parts` parts of nearly equal size. */
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
    IndexRange panels;        /* of the outer block */
    uint32_t *packed;         /* [k block][panel][dwords][width]; NULL: each thread packs its own */
    int64_t prepacked_panels; /* of the whole operand, packed before the call; 0: not prepacked */
} GemmOperand;

/* Used by one thread at a time. */
typedef struct {
    atomic_bool busy;
    atomic_llong a_block; /* index of the one packed here, for all k; -1: none */
    uint32_t *a;          /* a_buffer_dwords */
    float *sums;          /* partial sums of a C block */
} PackingBuffer;

typedef struct {
    const Call *call;
    const Microkernel *kernel;
    const BlockEpilogue *epilogue;
    GemmOperand a, b;
    int64_t dwords, kc, n_k_blocks; /* along k; all k blocks but the last have kc dwords */

    IndexRange k_blocks;          /* of the current outer block */
    EvenSplit a_blocks, c_blocks; /* its panels of A; its panels of B, for each block of A */
    bool a_block_stays;           /* all k blocks of a block of A fit into the packing buffer */
    float *partial;               /* sums between outer blocks along k; NULL: k is not split */

    PackingBuffer *buffer;
    int n_buffers; /* the number of threads */
} BlockedGemm;

#define multiply_c_block CPU_NAME(multiply_c_block)

/* Dwords of k block `k` of the whole GEMM. */
static inline int64_t k_block_dwords(const BlockedGemm *g, int64_t k)
{
    return least(g->kc, g->dwords - k * g->kc);
}

/* A packed panel; k block and panel are counted within the outer block. */
static inline uint32_t *panel_at(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                                 int64_t panel)
{
    const int64_t dwords = k_block_dwords(g, g->k_blocks.first + k);
    if (o->prepacked_panels == 0)
        return o->packed + o->shape.width * (k * g->kc * o->panels.n + panel * dwords);
    const int64_t before = (g->k_blocks.first + k) * g->kc * o->prepacked_panels;
    return o->packed + o->shape.width * (before + (o->panels.first + panel) * dwords);
}

/* Packs some panels of a k block, both counted within the outer block. */
static inline void pack_panels(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                               IndexRange panels, uint32_t *to)
{
    const int64_t k_block = g->k_blocks.first + k;
    const PanelPart part = {(o->panels.first + panels.first) * o->shape.width, k_block * g->kc,
                            k_block_dwords(g, k_block)};
    panels_pack(&o->matrix, o->shape, part, panels.n, to);
}

/* The memory that pack_panels will read; empty if it is contiguous in neither direction. */
static inline Prefetch prefetch_source(const BlockedGemm *g, const GemmOperand *o, int64_t k,
                                       IndexRange panels)
{
    const int64_t k_block = g->k_blocks.first + k, per = o->shape.type == BF16 ? 2 : 1;
    const PackOperand *x = &o->matrix;
    const int64_t size = (int64_t)dtype_bytes(x->dtype);
    const int64_t mn_at = (o->panels.first + panels.first) * o->shape.width,
                  k_at = k_block * g->kc * per;
    const int64_t mn = least(panels.n * o->shape.width, x->mn - mn_at);
    const int64_t n_k = least(k_block_dwords(g, k_block) * per, x->k - k_at);
    const char *const at = x->at + (mn_at * x->mn_stride + k_at * x->k_stride) * size;
    if (x->k_stride == 1) return prefetch_rows(at, n_k * size, mn, x->mn_stride * size);
    if (x->mn_stride == 1) return prefetch_rows(at, mn * size, n_k, x->k_stride * size);
    return (Prefetch){.row = NULL};
}

/* True if the GEMM, or the part of it that is timed, packs. */
static inline bool gemm_packs(const BlockedGemm *g)
{
    return g->epilogue->part == GEMM_WHOLE || g->epilogue->part == GEMM_PACK;
}

/* Local. Task of team_run: C block number `block` of the outer block. The C blocks of one block of
 * A are consecutive. */
void multiply_c_block(void *gemm, int64_t block);

#endif
