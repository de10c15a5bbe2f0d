/* store_pipeline.c -- a micro-tile of C is stored while the next one is multiplied.
 *
 *     multiply   tile 0        | tile 1        | tile 2        |
 *     store      -             | tile 0        | tile 1        |      a few rows per step along k
 *     prefetch   C of tile 0   | C of tile 1   | C of tile 2   |      lines to be written next
 *
 * A step of AMX occupies the tile unit for 64 cycles, during which the rest of the core is idle.
 * Rounding and storing a row takes ten. Without the overlap, stores took a quarter of a GEMM with k
 * = 768. The other micro-kernels use the same ports as stores do, so their tiles are stored at
 * once. */
#include "device/cpu/simd/gemm/store.h"

/* A block of a matrix; empty unless its columns are contiguous. */
static Prefetch prefetch_block(const Tensor *t, const CBlock *b)
{
    const int64_t size = (int64_t)dtype_bytes(t->dtype), step = t->stride[0] * size;
    if (t->stride[1] != 1) return (Prefetch){.row = NULL};
    const char *at = (const char *)t->data + b->row * step + b->column * size;
    return prefetch_rows(at, b->n * size, b->m, step);
}

static void prefetch_tile(const StorePipeline *p, PrefetchQueue *q, int64_t times)
{
    const TileStore *s = &p->tile[p->current];
    const Tensor *c = &s->call->out[0];
    q->c = prefetch_block(c, &s->block);
    if (s->addend != c && s->call->number[0] != 0) q->addend = prefetch_block(s->addend, &s->block);
    prefetch_spread(&q->c, times);
    prefetch_spread(&q->addend, times);
    for (int i = 0; i < MAX_EPILOGUE_OPERANDS; i++) {
        const Tensor *operand = s->epilogue->operand[i];
        q->operand[i] = operand ? prefetch_block(operand, &s->block) : (Prefetch){.row = NULL};
        prefetch_spread(&q->operand[i], times);
    }
}

/* True if the micro-kernel can store the tile from registers: a full tile of contiguous columns. */
static bool stores_from_registers(const StorePipeline *p, MicrokernelStore *out)
{
    const TileStore *s = &p->tile[p->current];
    const Tensor *c = &s->call->out[0], *addend = s->addend;
    const CBlock *b = &s->block;
    const int64_t size = (int64_t)dtype_bytes(c->dtype);
    const bool full = b->m == p->kernel->mr && b->n == p->kernel->nr;
    const bool plain = c->stride[1] == 1 && addend->stride[1] == 1 && c->dtype == addend->dtype;
    if (!p->kernel->stores_c || !full || !plain || (c->dtype != F32 && c->dtype != BF16))
        return false;
    *out = (MicrokernelStore){.rows = p->kernel->mr,
                              .type = c->dtype,
                              .c = (char *)c->data + (b->row * c->stride[0] + b->column) * size,
                              .addend = (const char *)addend->data +
                                        (b->row * addend->stride[0] + b->column) * size,
                              .c_step = c->stride[0] * size,
                              .addend_step = addend->stride[0] * size,
                              .keep = (float)s->call->number[0],
                              .bias = s->bias};
    return true;
}

static void store_some(StorePipeline *p)
{
    const TileStore *s = &p->tile[!p->current];
    const int64_t rows = min_i64(p->left, p->each);
    tile_store_rows(s, s->block.m - p->left, rows);
    p->left -= rows;
}

/* The micro-kernel's background work. */
static void store_in_background(void *work)
{
    StorePipeline *const p = work;
    if (p->left > 0) store_some(p);
}

void store_pipeline_flush(StorePipeline *p)
{
    p->each = p->left;
    if (p->left > 0) store_some(p);
}

void store_pipeline_multiply(StorePipeline *p, MicrokernelArgs *args, bool last)
{
    const Microkernel *uk = p->kernel;
    const int64_t steps = uk->overlaps_stores ? max_i64(1, args->dwords / uk->k_group) : 1;
    MicrokernelStore store;
    args->store = last && stores_from_registers(p, &store) ? &store : NULL;
    args->to = last ? p->sum[p->current] : args->c;
    p->tile[p->current].sum = args->to;
    if (last)
        prefetch_tile(p, args->prefetch, max_i64(1, blocks_of(args->dwords, PREFETCH_DWORDS)));
    p->each = blocks_of(p->left, steps);
    args->background = uk->overlaps_stores ? store_in_background : NULL;
    args->work = p;
    uk->multiply(args);
    store_pipeline_flush(p); /* k = 0 has no steps in which rows are stored */
    if (!last || args->store) return;
    p->left = p->tile[p->current].block.m;
    p->current = !p->current;
    if (!uk->overlaps_stores) store_pipeline_flush(p);
}
