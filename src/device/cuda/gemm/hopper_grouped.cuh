/* hopper_grouped.cuh -- the warp roles of the grouped ping-pong kernel (hopper_grouped.cu).
 *
 * Roles and rings are those of pingpong.cuh; what differs is which tiles there are
 * (grouped_tiles.cuh), and that depth steps, pieces and their tensors depend on the kind. */
#ifndef DEVICE_CUDA_GEMM_HOPPER_GROUPED_CUH
#define DEVICE_CUDA_GEMM_HOPPER_GROUPED_CUH

#include "device/cuda/gemm/grouped_tiles.cuh"
#include "device/cuda/gemm/pingpong_epilogue.cuh"

/* ---- producer roles: one thread each ---- */

static __device__ inline void load_rows(const GroupedTilesArgs &args, const GroupedTile &t, int k,
                                        uint32_t at, uint32_t full)
{
    const int half = cluster_rank(), row = t.first + k * DEPTH;
    const uint32_t x = at + W_BYTES + half * SIDE * GRAD_ROWS * 2;
    tma_load_ragged(at, &args.w[0], t.feature, row, t.end, full);
    tma_load_ragged(at + W_BYTES / 2, &args.w[0], t.feature + SIDE, row, t.end, full);
#pragma unroll
    for (int i = 0; i < TOKENS / SIDE; i++)
        tma_load_ragged_multicast(x + i * SIDE * DEPTH * 2, &args.x[0], t.token + i * SIDE,
                                  row + half * GRAD_ROWS, t.end, full);
}

template <GroupedKind KIND>
static __device__ inline void load_step(const GroupedTilesArgs &args, const GroupedTile &t, int k,
                                        uint32_t at, uint32_t full)
{
    const int half = cluster_rank(), source = k >= args.steps;
    const int depth = (k - source * args.steps) * DEPTH;
    const CUtensorMap *w = &args.w[source];
    if (KIND == GROUPED_SWIGLU) {
        tma_load_3d(at, &args.w[0], depth, t.feature, t.expert, full);
        tma_load_3d(at + W_BYTES / 2, &args.w[1], depth, t.feature, t.expert, full);
    } else if (GroupedShape<KIND>::TRANSPOSED) {
        tma_load_3d(at, w, t.feature, depth, t.expert, full);
        tma_load_3d(at + W_BYTES / 2, w, t.feature + SIDE, depth, t.expert, full);
    } else
        tma_load_3d(at, w, depth, t.feature, t.expert, full);
    tma_load_multicast(at + W_BYTES + half * (X_BYTES / 2), &args.x[source], depth,
                       t.token + half * (TOKENS / 2), full);
}

template <GroupedKind KIND>
static __device__ inline void load_operands(const PingpongShared &r, const GroupedTilesArgs &args,
                                            const int *start)
{
    const int n = tiles_of<KIND>(args, start);
    Ring<STAGES> ring(0);
    int expert = 0;
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const GroupedTile t = tile_of<KIND>(args, start, j, &expert);
        const int steps = steps_of<KIND>(args, t);
#pragma unroll 1
        for (int k = 0; k < steps; k++, ring.next()) {
            const uint32_t full = r.full + 8 * ring.at;
            mbarrier_wait(r.empty + 8 * ring.at, ring.phase ^ 1);
            mbarrier_expect_tx(full, STAGE_BYTES);
            if (KIND == GROUPED_GRAD)
                load_rows(args, t, k, r.stage + ring.at * STAGE_BYTES, full);
            else
                load_step<KIND>(args, t, k, r.stage + ring.at * STAGE_BYTES, full);
        }
    }
}

/* Piece p of a tile. */
typedef struct {
    int set, feature, row;
} PiecePlace;

template <GroupedKind KIND>
static __device__ inline PiecePlace piece_of(const GroupedTile &t, int p)
{
    typedef GroupedShape<KIND> S;
    if (KIND == GROUPED_SWIGLU) /* gate, up and y of the same rows */
        return PiecePlace{p % S::SETS, t.feature, t.token + S::ROWS * (p / S::SETS)};
    return PiecePlace{0, t.feature + SIDE * (p / S::HALF), t.token + S::ROWS * (p % S::HALF)};
}

/* Loads aux, or the old values of `out`, piece by piece. */
template <GroupedKind KIND>
static __device__ inline void load_old(const PingpongShared &r, const GroupedTilesArgs &args,
                                       const int *start)
{
    typedef GroupedShape<KIND> S;
    const CUtensorMap *from = KIND == GROUPED_DSWIGLU ? args.aux : args.out;
    const int n = tiles_of<KIND>(args, start);
    Ring<PIECES> ring(0);
    int expert = 0;
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const GroupedTile t = tile_of<KIND>(args, start, j, &expert);
#pragma unroll 1
        for (int p = 0; p < S::PIECES_OF_TILE; p++, ring.next()) {
            const uint32_t ready = r.ready + 8 * ring.at;
            const PiecePlace at = piece_of<KIND>(t, p);
            mbarrier_wait(r.spare + 8 * ring.at, ring.phase ^ 1);
            mbarrier_expect_tx(ready, PIECE_BYTES);
#pragma unroll
            for (int b = 0; b < S::BOXES; b++)
                tma_load_ragged(r.piece + ring.at * PIECE_BYTES + b * S::BYTES, from + b,
                                at.feature, at.row, t.end, ready);
        }
    }
}

/* Stores the finished pieces, without rows of other experts. A piece is free when the store of the
 * following one has begun. */
template <GroupedKind KIND>
static __device__ inline void store_out(const PingpongShared &r, const GroupedTilesArgs &args,
                                        const int *start)
{
    typedef GroupedShape<KIND> S;
    const int n = tiles_of<KIND>(args, start);
    Ring<PIECES> ring(0);
    int previous = -1, expert = 0;
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        const GroupedTile t = tile_of<KIND>(args, start, j, &expert);
#pragma unroll 1
        for (int p = 0; p < S::PIECES_OF_TILE; p++, ring.next()) {
            const PiecePlace at = piece_of<KIND>(t, p);
            mbarrier_wait(r.made + 8 * ring.at, ring.phase);
#pragma unroll
            for (int b = 0; b < S::BOXES; b++)
                tma_store_ragged(&args.out[at.set + b],
                                 r.piece + ring.at * PIECE_BYTES + b * S::BYTES, at.feature, at.row,
                                 t.end);
            tma_stores_read<S::BOXES>();
            if (previous >= 0) mbarrier_arrive(r.spare + 8 * previous);
            previous = ring.at;
        }
    }
    tma_stores_done();
}

/* ---- consumer roles: a warpgroup ---- */

template <GroupedKind KIND>
static __device__ inline void mma_step(uint32_t w, float (&d)[HALVES][PART], int keep)
{
    constexpr bool transposed = GroupedShape<KIND>::TRANSPOSED, grad = KIND == GROUPED_GRAD;
    const uint32_t x = w + W_BYTES;
#pragma unroll
    for (int s = 0; s < DEPTH / 16; s++)
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const uint64_t a =
                matrix_descriptor(w + half * (W_BYTES / 2) + s * (transposed ? 2048 : 32));
            const uint64_t b = grad ? matrix_descriptor(x + s * 2048, SIDE * DEPTH * 2)
                                    : matrix_descriptor(x + s * 32);
            wgmma_add<transposed, grad>(d[half], a, b, keep || s > 0);
        }
}

/* Multiplies a tile into registers. The ring is at its first step. */
template <GroupedKind KIND>
static __device__ inline void mma_tile(const PingpongShared &r, int steps, Ring<STAGES> ring,
                                       float (&d)[HALVES][PART])
{
    const int me = threadIdx.x % WARPGROUP, other = threadIdx.x < WARPGROUP;
    int previous = -1;
    for (int k = 0; k < steps; k++, ring.next()) {
        mbarrier_wait(r.full + 8 * ring.at, ring.phase);
        wgmma_fence();
        mma_step<KIND>(r.stage + ring.at * STAGE_BYTES, d, k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0 && me < 2) mbarrier_arrive_cluster(r.empty + 8 * previous, me);
        previous = ring.at;
    }
    if (me == 0) mbarrier_arrive(r.mma_order + 8 * other);
    wgmma_wait<0>();
#pragma unroll
    for (int half = 0; half < HALVES; half++) accumulators_fence(d[half]);
    if (previous >= 0 && me < 2) mbarrier_arrive_cluster(r.empty + 8 * previous, me);
}

/* Writes a piece: the result, plus keep times its old values if these were loaded. */
static __device__ inline void plain_piece(const PingpongShared &r, const float *d, float keep,
                                          Ring<PIECES> &ring)
{
    const uint32_t offset = r.piece + offset_in_piece() + ring.at * PIECE_BYTES;
    if (keep == 0)
        mbarrier_wait(r.spare + 8 * ring.at, ring.phase ^ 1);
    else
        mbarrier_wait(r.ready + 8 * ring.at, ring.phase);
#pragma unroll
    for (int n = 0; n < SIDE / 16; n++) {
        uint32_t x[4];
        if (keep != 0) ldmatrix_trans(offset + 2048 * n, x);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const uint32_t sum = bf16x2_pack(d[8 * n + 2 * q], d[8 * n + 2 * q + 1]);
            if (keep == 0) {
                x[q] = sum;
                continue;
            }
            const float2 old = bf16x2_floats(x[q]), now = bf16x2_floats(sum);
            x[q] = bf16x2_pack(fmaf(keep, old.x, now.x), fmaf(keep, old.y, now.y));
        }
        stmatrix_trans(offset + 2048 * n, x);
    }
    piece_made(r, ring.at);
    ring.next();
}

/* Writes gate, up and their swiglu: a piece each. */
static __device__ inline void swiglu_pieces(const PingpongShared &r, const float *gate,
                                            const float *up, Ring<PIECES> &ring)
{
    const uint32_t offset = r.piece + offset_in_piece();
#pragma unroll
    for (int set = 0; set < 3; set++, ring.next()) {
        mbarrier_wait(r.spare + 8 * ring.at, ring.phase ^ 1);
#pragma unroll
        for (int n = 0; n < SIDE / 16; n++) {
            uint32_t x[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int at = 8 * n + 2 * q;
                const uint32_t g = bf16x2_pack(gate[at], gate[at + 1]);
                const uint32_t u = bf16x2_pack(up[at], up[at + 1]);
                const float2 a = bf16x2_floats(g), b = bf16x2_floats(u);
                x[q] = set == 0 ? g
                       : set == 1
                           ? u
                           : bf16x2_pack(a.x * logistic(a.x) * b.x, a.y * logistic(a.y) * b.y);
            }
            stmatrix_trans(offset + ring.at * PIECE_BYTES + 2048 * n, x);
        }
        piece_made(r, ring.at);
    }
}

template <GroupedKind KIND>
static __device__ inline void epilogue_rows(const PingpongShared &r, float keep, int j,
                                            const float (&d)[HALVES][PART])
{
    typedef GroupedShape<KIND> S;
    const int group = threadIdx.x / WARPGROUP;
    Ring<PIECES> ring(j * S::PIECES_OF_TILE);
#pragma unroll
    for (int i = 0; i < S::PIECES_OF_TILE; i++) {
        const float *mine = &d[i / S::HALF % HALVES][i % S::HALF * (PART / S::HALF)];
        if (KIND == GROUPED_DSWIGLU)
            dswiglu_piece(r, mine, ring);
        else if (KIND != GROUPED_SWIGLU)
            plain_piece(r, mine, keep, ring);
        else if (i < S::HALF)
            swiglu_pieces(r, mine, &d[1][i * (PART / S::HALF)], ring);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); /* all warps have finished */
    if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(r.epilogue_order + 8 * (group == 0));
}

/* Stores a gradient of weights from registers: four lanes have 32 bytes of a row. */
static __device__ inline void epilogue_grad(const GroupedTilesArgs &args, const GroupedTile &t,
                                            const float (&d)[HALVES][PART])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int m = t.feature + SIDE * half + 16 * warp + 8 * row + lane / 4;
            float *to = (float *)args.grad.data + t.expert * args.grad.stride[0] +
                        m * args.grad.stride[1] + t.token + lane % 4 * 2;
            if (m >= args.grad.n[1]) continue;
#pragma unroll
            for (int i = 0; i < TOKENS / 8; i++) {
                if (t.token + 8 * i >= args.grad.n[2]) break;
                float2 sum = make_float2(d[half][4 * i + 2 * row], d[half][4 * i + 2 * row + 1]);
                float2 *at = (float2 *)(to + 8 * i);
                if (args.keep != 0) {
                    const float2 old = *at;
                    sum = make_float2(sum.x + args.keep * old.x, sum.y + args.keep * old.y);
                }
                *at = sum;
            }
        }
}

#endif
