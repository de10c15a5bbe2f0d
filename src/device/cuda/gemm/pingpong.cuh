/* pingpong.cuh -- the warp roles of the ping-pong kernel (pingpong.cu).
 *
 * An output tile has 192 tokens and 128 features; a block computes one tile after the other. The
 * GEMM is computed transposed: features are rows and tokens are columns. A bias then belongs to a
 * row, and a thread's sum along its rows is a sum over tokens.
 *
 *     load operands   w, x | w, x | w, x | ...      64 of the depth each, into a ring of STAGES
 *     warpgroup 0     tile 0 ======== gelu -------- tile 2 ======== gelu --------
 *     warpgroup 1             (waits) tile 1 ======== gelu -------- tile 3 ========
 *     load aux        aux of tile 0 | aux of tile 1 | ...      pieces of 8 KiB, a ring of PIECES
 *     store out       out of tile 0 | out of tile 1 | ...      overwrites aux in place, then stores
 *
 * While one warpgroup of 128 threads multiplies, the other runs the epilogue of its tile, so the
 * tensor cores are always busy. A cluster of two blocks has the same tokens and neighbouring
 * features: each block multicasts half of x to both. */
#ifndef DEVICE_CUDA_GEMM_PINGPONG_CUH
#define DEVICE_CUDA_GEMM_PINGPONG_CUH

#include "device/cuda/gemm/pingpong.h"
#include "device/cuda/hopper.cuh"
#include "device/cuda/wgmma.cuh"

enum { FEATURES = 128, TOKENS = PINGPONG_TOKENS, DEPTH = 64, STAGES = 5 };
enum { W_BYTES = FEATURES * DEPTH * 2, X_BYTES = TOKENS * DEPTH * 2 };
enum { STAGE_BYTES = W_BYTES + X_BYTES };
/* A piece of out or aux has 64 features, half a tile, and 64 tokens. If there are two tensors of
 * each, a piece has 32 tokens of both, one after the other. */
enum { SIDE = 64, PIECES = 3, PIECE_BYTES = SIDE * SIDE * 2 };
/* Accumulators of a thread for half a tile. */
enum { HALVES = FEATURES / SIDE, PART = TOKENS / 2 };
enum { WARPGROUP = 128, PINGPONG_THREADS = 3 * WARPGROUP, PINGPONG_ALIGN = 1024 };
enum { N_BARRIERS = 2 * STAGES + 3 * PIECES + 4 };
enum {
    PINGPONG_BYTES = STAGES * STAGE_BYTES + PIECES * PIECE_BYTES + 8 * N_BARRIERS + PINGPONG_ALIGN
};

/* Boxes of a piece, their tokens and bytes; pieces of half a tile and of a tile. */
template <EpilogueKind KIND> struct Pieces {
    enum {
        BOXES = KIND == EPILOGUE_DSWIGLU ? 2 : 1,
        ROWS = SIDE / BOXES,
        BYTES = PIECE_BYTES / BOXES
    };
    enum { HALF = TOKENS / ROWS, TILE = HALVES * HALF };
};

typedef struct {
    CUtensorMap w, x, out[2], aux[2];
    int pairs, across, steps; /* pairs of tiles: in all, along features; depth steps */
    int width;
    const __nv_bfloat16 *bias;
    float *part; /* [tiles along tokens, width]: column sums of each tile; NULL: none */
} PingpongArgs;

/* Shared memory addresses of the rings and their barriers. */
typedef struct {
    uint32_t stage, full, empty;        /* operand ring: loaded; consumed by both blocks */
    uint32_t piece, ready, made, spare; /* piece ring: aux loaded; out written; stored */
    uint32_t mma_order, epilogue_order; /* of warpgroups: may multiply; may run the epilogue */
} PingpongShared;

static __device__ inline PingpongShared shared_layout(uint32_t at)
{
    PingpongShared r;
    r.stage = (at + PINGPONG_ALIGN - 1) & ~(uint32_t)(PINGPONG_ALIGN - 1);
    r.piece = r.stage + STAGES * STAGE_BYTES;
    r.full = r.piece + PIECES * PIECE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.ready = r.empty + 8 * STAGES;
    r.made = r.ready + 8 * PIECES;
    r.spare = r.made + 8 * PIECES;
    r.mma_order = r.spare + 8 * PIECES;
    r.epilogue_order = r.mma_order + 16;
    return r;
}

static __device__ inline void shared_init(const PingpongShared &r)
{
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(r.full + 8 * i, 1);
        mbarrier_init(r.empty + 8 * i, 2); /* one warpgroup of each block */
    }
    for (int i = 0; i < PIECES; i++) {
        mbarrier_init(r.ready + 8 * i, 1);
        mbarrier_init(r.made + 8 * i, WARPGROUP / 32);
        mbarrier_init(r.spare + 8 * i, 1);
    }
    for (int i = 0; i < 2; i++) {
        mbarrier_init(r.mma_order + 8 * i, 1);
        mbarrier_init(r.epilogue_order + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* A position in a ring and the parity of its phase. */
template <int N> struct Ring {
    int at, phase;
    __device__ inline Ring(int count) : at(count % N), phase(count / N & 1) {}
    __device__ inline void next()
    {
        if (++at < N) return;
        at = 0;
        phase ^= 1;
    }
};

/* Tile j of the block. Tiles that are neighbours in features follow each other, so that x is read
 * from device memory once. */
typedef struct {
    int feature, token, row; /* row: index of the tile along tokens */
} PingpongTile;

static __device__ inline PingpongTile tile_of(const PingpongArgs &args, int j)
{
    const int pair = blockIdx.x / 2 + j * (gridDim.x / 2), row = pair / args.across;
    return PingpongTile{(2 * (pair - row * args.across) + cluster_rank()) * FEATURES, row * TOKENS,
                        row};
}

static __device__ inline int tiles_of(const PingpongArgs &args)
{
    const int clusters = gridDim.x / 2;
    return (args.pairs - (int)blockIdx.x / 2 + clusters - 1) / clusters;
}

/* ---- producer roles: one thread each ---- */

template <bool TRANSPOSED>
static __device__ inline void load_operands(const PingpongShared &r, const PingpongArgs &args)
{
    const int n = tiles_of(args), half = cluster_rank();
    Ring<STAGES> ring(0);
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const PingpongTile tile = tile_of(args, j);
#pragma unroll 1
        for (int k = 0; k < args.steps; k++, ring.next()) {
            const uint32_t at = r.stage + ring.at * STAGE_BYTES, full = r.full + 8 * ring.at;
            mbarrier_wait(r.empty + 8 * ring.at, ring.phase ^ 1);
            mbarrier_expect_tx(full, STAGE_BYTES);
            if (TRANSPOSED) {
                tma_load(at, &args.w, tile.feature, k * DEPTH, full);
                tma_load(at + W_BYTES / 2, &args.w, tile.feature + SIDE, k * DEPTH, full);
            } else
                tma_load(at, &args.w, k * DEPTH, tile.feature, full);
            tma_load_multicast(at + W_BYTES + half * (X_BYTES / 2), &args.x, k * DEPTH,
                               tile.token + half * (TOKENS / 2), full);
        }
    }
}

template <EpilogueKind KIND>
static __device__ inline void load_aux(const PingpongShared &r, const PingpongArgs &args)
{
    typedef Pieces<KIND> P;
    const int n = tiles_of(args);
    Ring<PIECES> ring(0);
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const PingpongTile tile = tile_of(args, j);
#pragma unroll 1
        for (int p = 0; p < P::TILE; p++, ring.next()) {
            const uint32_t ready = r.ready + 8 * ring.at;
            mbarrier_wait(r.spare + 8 * ring.at, ring.phase ^ 1);
            mbarrier_expect_tx(ready, PIECE_BYTES);
#pragma unroll
            for (int b = 0; b < P::BOXES; b++)
                tma_load(r.piece + ring.at * PIECE_BYTES + b * P::BYTES, &args.aux[b],
                         tile.feature + SIDE * (p / P::HALF), tile.token + P::ROWS * (p % P::HALF),
                         ready);
        }
    }
}

/* Stores the finished pieces; for a gelu each piece of aux, then of out. A piece is free when the
 * store of the following one has begun. */
template <EpilogueKind KIND>
static __device__ inline void store_out(const PingpongShared &r, const PingpongArgs &args)
{
    typedef Pieces<KIND> P;
    const int n = tiles_of(args), kinds = KIND == EPILOGUE_GELU ? 2 : 1;
    Ring<PIECES> ring(0);
    int previous = -1;
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const PingpongTile tile = tile_of(args, j);
#pragma unroll 1
        for (int i = 0; i < kinds * P::TILE; i++, ring.next()) {
            const int p = i / kinds;
            const CUtensorMap *to = kinds == 2 && i % 2 == 0 ? args.aux : args.out;
            mbarrier_wait(r.made + 8 * ring.at, ring.phase);
#pragma unroll
            for (int b = 0; b < P::BOXES; b++)
                tma_store(to + b, r.piece + ring.at * PIECE_BYTES + b * P::BYTES,
                          tile.feature + SIDE * (p / P::HALF),
                          tile.token + P::ROWS * (p % P::HALF));
            tma_stores_read<P::BOXES>();
            if (previous >= 0) mbarrier_arrive(r.spare + 8 * previous);
            previous = ring.at;
        }
    }
    tma_stores_done();
}

/* ---- consumer roles: a warpgroup ---- */

/* Multiplies tile j of the block into registers. */
template <bool TRANSPOSED>
static __device__ inline void mma_tile(const PingpongShared &r, const PingpongArgs &args, int j,
                                       float (&d)[HALVES][PART])
{
    const int me = threadIdx.x % WARPGROUP, other = threadIdx.x < WARPGROUP;
    Ring<STAGES> ring(j * args.steps);
    int previous = -1;
    for (int k = 0; k < args.steps; k++, ring.next()) {
        mbarrier_wait(r.full + 8 * ring.at, ring.phase);
        const uint32_t w = r.stage + ring.at * STAGE_BYTES, x = w + W_BYTES;
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < DEPTH / 16; s++)
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                const uint32_t a = w + half * (W_BYTES / 2) + s * (TRANSPOSED ? 2048 : 32);
                wgmma_add<TRANSPOSED, 0>(d[half], matrix_descriptor(a),
                                         matrix_descriptor(x + s * 32), k > 0 || s > 0);
            }
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0 && me < 2) mbarrier_arrive_cluster(r.empty + 8 * previous, me);
        previous = ring.at;
    }
    if (me == 0) mbarrier_arrive(r.mma_order + 8 * other);
    wgmma_wait<0>();
#pragma unroll
    for (int half = 0; half < HALVES; half++) accumulators_fence(d[half]);
    if (me < 2) mbarrier_arrive_cluster(r.empty + 8 * previous, me);
}

/* Signals that this warp has written its part of a piece. */
static __device__ inline void piece_made(const PingpongShared &r, int at)
{
    tma_store_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(r.made + 8 * at);
}

#endif
