/* hopper_forward_load.cuh -- the loading warps of the forward kernel: planner, loader, checker. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_LOAD_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_LOAD_CUH

#include "device/cuda/attention/hopper_forward.cuh"

/* The planner: a warp. It copies words, because it has few registers. */
template <class F>
static __device__ inline void plan_tiles(const ForwardShared<F> &r, const ForwardArgs &args)
{
    enum { ROWS_WORDS = sizeof(TileRows) / 4, HULL_WORDS = F::GROUPS * sizeof(BlockHull) / 4 };
    const TileOrder &order = args.a.order;
    const int lane = threadIdx.x % 32, n = order.tiles * args.a.h;
    StageRing<N_TILES> ring;
    for (int next = blockIdx.x;; ring.next()) {
        const bool live = next < n;
        TileNote *note = &r.tiles[ring.at];
        const int *rows = NULL, *hull = NULL;
        int following = 0, word = -1, hull_word[2];
        if (live) {
            rows = (const int *)tile_rows_at(order, next / args.a.h);
            hull = (const int *)(args.a.hull + rows[0] / HULL_ROWS);
            if (lane < ROWS_WORDS) word = rows[lane];
            for (int i = 0; i < 2; i++)
                if (lane + 32 * i < HULL_WORDS) hull_word[i] = hull[lane + 32 * i];
            if (lane == 0) following = gridDim.x + atomicAdd(&order.count[ORDER_NEXT], 1);
        }
        mbarrier_wait(r.tile_empty + 8 * ring.at, ring.phase ^ 1);
        if (lane < ROWS_WORDS) ((int *)&note->tile.rows)[lane] = word;
        if (lane == 0) note->tile.head = next % args.a.h;
        for (int i = 0; i < 2; i++)
            if (lane + 32 * i < HULL_WORDS) ((int *)note->hull)[lane + 32 * i] = hull_word[i];
        __syncwarp();
        if (lane == 0) mbarrier_arrive(r.tile_full + 8 * ring.at);
        if (!live) break;
        next = uniform(following);
    }
    if (lane == 0) order_close(order);
}

/* Loads `boxes` boxes of channels of one head. */
template <int BOXES, int BOX_BYTES>
static __device__ inline void boxes_load(uint32_t to, const CUtensorMap *from, int head, int row,
                                         uint32_t barrier)
{
#pragma unroll
    for (int i = 0; i < BOXES; i++)
        tma_load_3d(to + i * BOX_BYTES, from, i * BOX_CHANNELS, head, row, barrier);
}

/* The loader: one thread. */
template <class F> struct KeyLoader {
    const ForwardShared<F> &r;
    const ForwardArgs &args;
    StageRing<F::STAGES> ring;

    /* Flags of the block of keys [from, from + BN) for the warpgroups of a tile. */
    __device__ inline int flags_of(const TileNote &note, int from) const
    {
        int flags = 0;
#pragma unroll 1
        for (int g = 0; g < F::GROUPS; g++) {
            const BlockHull &u = note.hull[g];
            const bool sees = hull_sees(u, from, from + F::BN);
            if (sees) flags |= SEES << 4 * g;
            if (sees && hull_full(u, from, from + F::BN)) flags |= FULL << 4 * g;
            if (min(u.any[0], u.any[2]) >= from) flags |= ENDS << 4 * g;
        }
        return flags;
    }

    /* Whether rows of V in the block must be checked: no warpgroup sees all of it. */
    __device__ inline int clear_of(const ForwardTile &tile, int flags, int from) const
    {
        const int *any = tile.rows.any;
        if (flags & (FULL << 8 | FULL << 4 | FULL)) return 0;
        if (tile.rows.solid != 3) return CLEAR_BY_ROW;
        const int lo = max(from, 0), hi = min(from + F::BN, args.a.s);
        return (any[0] <= lo && any[1] >= hi) || (any[2] <= lo && any[3] >= hi) ? 0 : CLEAR;
    }

    __device__ inline void block(int head, BlockNote note, int clear)
    {
        const int at = ring.at;
        mbarrier_wait(r.k_empty + 8 * at, ring.phase ^ 1);
        r.blocks[at] = note;
        mbarrier_expect_tx(r.k_full + 8 * at, F::BLOCK_BYTES);
        boxes_load<F::BOXES, F::K_BOX>(r.k + at * F::BLOCK_BYTES, &args.k, head, note.key,
                                       r.k_full + 8 * at);
        mbarrier_wait(r.v_empty + 8 * at, ring.phase ^ 1);
        note.flags = (note.flags & LAST) | clear;
        r.blocks[F::STAGES + at] = note;
        mbarrier_expect_tx(r.v_full + 8 * at, F::BLOCK_BYTES);
        boxes_load<F::BOXES, F::K_BOX>(r.v + at * F::BLOCK_BYTES, &args.v, head, note.key,
                                       r.v_full + 8 * at);
        ring.next();
    }

    /* All blocks of a tile. */
    __device__ inline void blocks(const TileNote &note, const ForwardTile &tile)
    {
        const int head = key_head_of(args.a, tile.head);
        for (int to = block_end(tile.rows.any, args.a.s); to > 0;) {
            const int from = to - F::BN, flags = flags_of(note, from);
            to = block_end(tile.rows.any, from);
            block(head, {from, flags | (to > 0 ? 0 : LAST)}, clear_of(tile, flags, from));
        }
    }

    __device__ inline void run()
    {
        StageRing<N_TILES> tiles;
        StageRing<N_QUERIES> queries;
        for (;; tiles.next(), queries.next()) {
            mbarrier_wait(r.tile_full + 8 * tiles.at, tiles.phase);
            const ForwardTile tile = r.tiles[tiles.at].tile;
            if (tile.rows.row < 0) return;
            mbarrier_wait(r.q_empty + 8 * queries.at, queries.phase ^ 1);
            mbarrier_expect_tx(r.q_full + 8 * queries.at, F::Q_BYTES);
            boxes_load<F::BOXES, F::Q_BOX>(r.q + queries.at * F::Q_BYTES, &args.q, tile.head,
                                           tile.rows.row, r.q_full + 8 * queries.at);
            blocks(r.tiles[tiles.at], tile);
            mbarrier_arrive(r.tile_empty + 8 * tiles.at);
        }
    }
};

/* Sets rows of V to 0 that no row of the tile sees: those outside of the hull if it has no gap, or
 * by the ranges of each row. One warp. */
template <class F>
static __device__ inline void clear_block(const Attention &a, const ForwardTile &tile,
                                          const BlockNote &note, uint32_t v)
{
    const int lane = threadIdx.x % 32;
    uint32_t seen[(F::BN + 31) / 32];
#pragma unroll
    for (int w = 0; w < (F::BN + 31) / 32; w++) seen[w] = 0;
#pragma unroll 1
    for (int i = lane; i < F::BM; i += 32) {
        const bool hull = note.flags & CLEAR;
        const int4 ranges =
            hull ? make_int4(tile.rows.any[0], tile.rows.any[1], tile.rows.any[2], tile.rows.any[3])
                 : row_ranges(a, tile.rows.row + i);
#pragma unroll
        for (int w = 0; w < (F::BN + 31) / 32; w++) seen[w] |= seen_bits(ranges, note.key + 32 * w);
        if (hull) break;
    }
#pragma unroll
    for (int w = 0; w < (F::BN + 31) / 32; w++) {
        const uint32_t all = __reduce_or_sync(0xffffffffu, seen[w]);
        if (all >> lane & 1) continue;
        const uint32_t at = v + (32 * w + lane) * BOX_ROW;
        for (int i = 0; i < F::BOXES; i++)
            for (int c = 0; c < BOX_ROW; c += 16)
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(at + i * F::K_BOX + c),
                             "r"(0)
                             : "memory");
    }
    __syncwarp();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The checker: a warp. */
template <class F>
static __device__ inline void check_values(const ForwardShared<F> &r, const ForwardArgs &args)
{
    StageRing<N_TILES> tiles;
    StageRing<F::STAGES> ring;
    for (;;) {
        const ForwardTile tile = tile_take(r, tiles);
        if (tile.rows.row < 0) return;
        for (bool more = has_blocks(tile); more; ring.next()) {
            mbarrier_wait(r.v_full + 8 * ring.at, ring.phase);
            const BlockNote note = r.blocks[F::STAGES + ring.at];
            if (note.flags & (CLEAR | CLEAR_BY_ROW))
                clear_block<F>(args.a, tile, note, r.v + ring.at * F::BLOCK_BYTES);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(r.v_clean + 8 * ring.at);
            more = !(note.flags & LAST);
        }
    }
}

#endif
