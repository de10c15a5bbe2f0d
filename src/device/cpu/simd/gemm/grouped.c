/* grouped.c -- GEMMs over the rows of all experts in one call.
 *
 *     forward, dx     1. the team packs the matrices of some experts, each dword once
 *                     2. tiles of rows: 0..263 264..400 | 0..90 | ...      of expert 0 | 1 | ...
 *     dw              tiles of matrices: parts of the longer side
 *
 * A tile is a GEMM of one thread, so threads share experts of any size: one hot expert is many
 * tiles. Matrices that do not fit into L3 with others are multiplied one after the other, each by
 * the whole team. The bits of an element depend on its row and column alone (gemm.h), not on
 * tiles. */
#include "device/grouped.h"

#include <stdatomic.h>
#include "device/cpu/simd/gemm/blocked.h"
#include "device/cpu/simd/gemm/skinny.h"
#include "device/cpu/workspace.h"

/* Bytes of packed matrices at a time. */
enum { PACKED_BYTES = 16 << 20 };
/* Tiles of dw: per thread, at least; elements of one, at most; extent of its longer side, at
 * least. */
enum { DW_TILES_PER_THREAD = 8, DW_TILE = 512 * 1024, DW_SIDE = 128 };

typedef struct {
    const Call *call;
    const Microkernel *kernel;
    bool skinny;         /* few rows in all: decoding */
    IndexRange experts;  /* of this round */
    char *packed;        /* their matrices */
    size_t packed_bytes; /* of one; 0: they are not packed */
    int64_t pack_tasks;  /* of one */
    int64_t dw_parts;    /* tiles of one expert's matrix */
    atomic_int err;      /* of one tile that failed */
} GroupedGemm;

static Err multiply(const GroupedGemm *g, Call *one)
{
    if (one->out[0].n[0] == 0 || one->out[0].n[1] == 0) return OK;
    if (g->skinny && skinny_fits(one)) return skinny_gemm(one);
    return blocked_gemm(one, g->kernel, &(BlockEpilogue){.addend = NULL});
}

static GroupedGemm grouped_open(const Call *call)
{
    const bool narrow = call->in[0].dtype == BF16 && call->in[1].dtype == BF16;
    return (GroupedGemm){.call = call, .kernel = microkernel_for(narrow ? BF16 : F32)};
}

static int64_t rows_of(const GroupedGemm *g, int64_t e)
{
    return grouped_offset(&g->call->in[2], e + 1) - grouped_offset(&g->call->in[2], e);
}

/* The rows of an expert in tiles whose borders are those of micro-panels. */
static EvenSplit row_tiles(const GroupedGemm *g, int64_t e)
{
    const int64_t panels = blocks_of(rows_of(g, e), g->kernel->mr);
    return (EvenSplit){panels, blocks_of(panels, 2 * g->kernel->mc / g->kernel->mr)};
}

static Call pack_call(const GroupedGemm *g, int64_t e)
{
    Call pack = {.in = {grouped_matrix(&g->call->in[1], e)}, .n_in = 1, .attr = g->call->attr};
    pack.out[0].data = g->packed + (size_t)(e - g->experts.first) * g->packed_bytes;
    return pack;
}

static void grouped_pack(void *work, int64_t task)
{
    const GroupedGemm *g = work;
    const int64_t e = g->experts.first + task / g->pack_tasks;
    const Call pack = pack_call(g, e);
    if (rows_of(g, e) > 0) blocked_prepack(&pack, task % g->pack_tasks);
}

/* Finds the expert and the rows of a tile: O(experts). */
static void grouped_tile(void *work, int64_t tile)
{
    GroupedGemm *g = work;
    int64_t e = g->experts.first;
    EvenSplit tiles = row_tiles(g, e);
    for (; tile >= tiles.parts; tiles = row_tiles(g, ++e)) tile -= tiles.parts;
    const int64_t first = grouped_offset(&g->call->in[2], e), mr = g->kernel->mr;
    Call one = grouped_call(g->call, e, first + split_at(tiles, tile) * mr,
                            first + min_i64(rows_of(g, e), split_at(tiles, tile + 1) * mr));
    one.team = NULL;
    one.prepacked = g->packed_bytes > 0 ? pack_call(g, e).out[0].data : NULL;
    const Err err = multiply(g, &one);
    if (err != OK) atomic_store(&g->err, (int)err);
}

/* Packs the matrices of the experts of this round, and multiplies them. */
static void run_round(GroupedGemm *g)
{
    Team *const team = g->call->team;
    int64_t tiles = 0;
    for (int64_t i = 0; i < g->experts.n; i++) tiles += row_tiles(g, g->experts.first + i).parts;
    if (tiles == 0) return;
    if (g->packed_bytes > 0) team_run(team, g->experts.n * g->pack_tasks, grouped_pack, g);
    team_run(team, tiles, grouped_tile, g);
}

/* Each expert by the whole team. */
static Err run_by_expert(const GroupedGemm *g, int64_t experts)
{
    for (int64_t e = 0; e < experts; e++) {
        const int64_t from = grouped_offset(&g->call->in[2], e);
        Call one = grouped_call(g->call, e, from, from + rows_of(g, e));
        one.prepacked = NULL;
        TRY(multiply(g, &one));
    }
    return OK;
}

Err CPU_NAME(grouped_gemm)(const Call *call)
{
    GroupedGemm g = grouped_open(call);
    const int64_t experts = call->in[2].n[0] - 1;
    const Tensor *const b = &call->in[1];
    const int64_t k = b->n[call->attr.gemm.tb ? 2 : 1], n = b->n[call->attr.gemm.tb ? 1 : 2];
    const size_t bytes = CPU_NAME(prepacked_bytes)(b->dtype, k, n);
    Workspace *w = NULL;
    g.skinny = grouped_offset(&call->in[2], experts) <= MAX_SKINNY_ROWS;
    if (!g.skinny && bytes > PACKED_BYTES) return run_by_expert(&g, experts);
    int64_t each = experts; /* of a round */
    if (!g.skinny && call->in[0].dtype == b->dtype && bytes > 0) {
        each = min_i64(experts, PACKED_BYTES / (int64_t)bytes);
        TRY(workspace_take((size_t)each * bytes, "a GEMM over experts", &w));
        g.packed = w->at;
        g.packed_bytes = bytes;
        g.pack_tasks = blocked_prepack_tasks(
            &(Call){.in = {grouped_matrix(b, 0)}, .n_in = 1, .attr = call->attr});
    }
    for (int64_t e = 0; e < experts; e += each) {
        g.experts = (IndexRange){e, min_i64(each, experts - e)};
        run_round(&g);
    }
    if (w) workspace_give(w);
    return (Err)atomic_load(&g.err);
}

/* Rows or columns [from, to) of a matrix. */
static void cut(Tensor *t, int dim, int64_t from, int64_t to)
{
    t->data = (char *)t->data + from * t->stride[dim] * (int64_t)dtype_bytes(t->dtype);
    t->n[dim] = to - from;
}

static void grouped_dw_tile(void *work, int64_t tile)
{
    GroupedGemm *g = work;
    Call one = grouped_call_dw(g->call, tile / g->dw_parts);
    const int longer = one.out[0].n[1] > one.out[0].n[0] ? 1 : 0; /* a [r,m] or b [r,n] */
    const EvenSplit split = {one.out[0].n[longer], g->dw_parts};
    const int64_t part = tile % g->dw_parts;
    cut(&one.out[0], longer, split_at(split, part), split_at(split, part + 1));
    cut(&one.in[longer], 1, split_at(split, part), split_at(split, part + 1));
    one.team = NULL;
    one.prepacked = NULL;
    const Err err = multiply(g, &one);
    if (err != OK) atomic_store(&g->err, (int)err);
}

Err CPU_NAME(grouped_gemm_dw)(const Call *call)
{
    GroupedGemm g = grouped_open(call);
    const int64_t experts = call->out[0].n[0], m = call->out[0].n[1], n = call->out[0].n[2];
    const int64_t wanted = blocks_of(DW_TILES_PER_THREAD * team_threads(call->team), experts);
    if (experts == 0) return OK;
    g.dw_parts = max_i64(wanted, blocks_of(m * n, DW_TILE));
    g.dw_parts = max_i64(1, min_i64(g.dw_parts, max_i64(m, n) / DW_SIDE));
    team_run(call->team, experts * g.dw_parts, grouped_dw_tile, &g);
    return (Err)atomic_load(&g.err);
}
