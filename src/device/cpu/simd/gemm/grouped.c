/* grouped.c -- GEMMs over the rows of all experts in one call.
 *
 *     tile                     expert 0        expert 1     expert 2
 *     forward, dx              rows 0..255, 256..400 | 0..90 | ...         MC rows of one expert
 *     dw                       columns of its matrix                      NC columns
 *
 * A tile is a GEMM of one thread, so threads share experts of any size: one hot expert is many
 * tiles. The bits of an element depend on its row and column alone (gemm.h), not on tiles. */
#include "device/grouped.h"

#include <stdatomic.h>
#include "device/cpu/simd/gemm/gemm.h"
#include "device/cpu/simd/gemm/skinny.h"

enum { MC = 256, NC = 256 };

typedef struct {
    const Call *call;
    int64_t tiles_each; /* of dw: tiles of one expert's matrix */
    bool skinny;        /* few rows in all: decoding */
    atomic_int err;     /* of one tile that failed */
} GroupedGemm;

static Err multiply(const GroupedGemm *g, Call *one)
{
    const bool narrow = one->in[0].dtype == BF16 && one->in[1].dtype == BF16;
    one->team = NULL;
    one->prepacked = NULL;
    if (one->out[0].n[0] == 0 || one->out[0].n[1] == 0) return OK;
    if (g->skinny && skinny_fits(one)) return skinny_gemm(one);
    return blocked_gemm(one, microkernel_for(narrow ? BF16 : F32),
                        &(BlockEpilogue){.addend = NULL});
}

/* Finds the expert and the rows of a tile: O(experts). */
static void grouped_tile(void *work, int64_t tile)
{
    GroupedGemm *g = work;
    const Tensor *offsets = &g->call->in[2];
    for (int64_t e = 0; e + 1 < offsets->n[0]; e++) {
        const int64_t from = grouped_offset(offsets, e), to = grouped_offset(offsets, e + 1);
        const int64_t tiles = blocks_of(to - from, MC);
        if (tile < tiles) {
            Call one = grouped_call(g->call, e, from + (to - from) * tile / tiles,
                                    from + (to - from) * (tile + 1) / tiles);
            const Err err = multiply(g, &one);
            if (err != OK) atomic_store(&g->err, (int)err);
            return;
        }
        tile -= tiles;
    }
}

Err CPU_NAME(grouped_gemm)(const Call *call)
{
    const Tensor *offsets = &call->in[2];
    const int64_t n = offsets->n[0] - 1;
    GroupedGemm g = {.call = call, .skinny = grouped_offset(offsets, n) <= MAX_SKINNY_ROWS};
    int64_t tiles = 0;
    for (int64_t e = 0; e < n; e++)
        tiles += blocks_of(grouped_offset(offsets, e + 1) - grouped_offset(offsets, e), MC);
    if (tiles > 0) team_run(call->team, tiles, grouped_tile, &g);
    return (Err)atomic_load(&g.err);
}

static void grouped_dw_tile(void *work, int64_t tile)
{
    GroupedGemm *g = work;
    Call one = grouped_call_dw(g->call, tile / g->tiles_each);
    const int64_t part = tile % g->tiles_each, columns = one.out[0].n[1];
    const int64_t from = columns * part / g->tiles_each, to = columns * (part + 1) / g->tiles_each;
    Tensor *const split[] = {&one.in[1], &one.out[0]};
    for (int i = 0; i < 2; i++) {
        split[i]->data = (char *)split[i]->data +
                         from * split[i]->stride[1] * (int64_t)dtype_bytes(split[i]->dtype);
        split[i]->n[1] = to - from;
    }
    const Err err = multiply(g, &one);
    if (err != OK) atomic_store(&g->err, (int)err);
}

Err CPU_NAME(grouped_gemm_dw)(const Call *call)
{
    GroupedGemm g = {.call = call, .tiles_each = blocks_of(call->out[0].n[2], NC)};
    const int64_t tiles = call->out[0].n[0] * g.tiles_each;
    if (tiles > 0) team_run(call->team, tiles, grouped_dw_tile, &g);
    return (Err)atomic_load(&g.err);
}
