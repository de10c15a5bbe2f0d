/* pingpong_epilogue.cuh -- the epilogue of a tile: gelu, gelu's gradient or swiglu's gradient.
 *
 * A warp owns 16 features of each half tile and processes the tokens piece by piece. The SM has
 * little time besides the tensor cores, so every instruction counts. tanh is the hardware
 * approximation: exact to 2^-11 by its documentation (2^-17 measured on an H200), while a bf16
 * result keeps 2^-9. */
#ifndef DEVICE_CUDA_GEMM_PINGPONG_EPILOGUE_CUH
#define DEVICE_CUDA_GEMM_PINGPONG_EPILOGUE_CUH

#include "device/cuda/gemm/pingpong.cuh"

#define GELU_A 0.7978845608028654f
#define GELU_B (GELU_A * 0.044715f)

static __device__ inline float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* u (1 + t) / 2, t = tanh(u (A + B u^2)) */
static __device__ inline float gelu_approx(float u)
{
    const float half = 0.5f * u;
    return fmaf(half, tanh_approx(u * fmaf(u * u, GELU_B, GELU_A)), half);
}

/* (1 + t) / 2 + u (1 - t^2) (A + 3 B u^2) / 2. From |u| = 1.8e13 on this is 0 times infinity, NaN,
 * and the step is skipped. Bounding u^2 would give 0 or 1, but makes a GEMM of 32,768 x 4,096 x
 * 1,024 7% slower. */
static __device__ inline float gelu_slope(float u)
{
    const float u2 = u * u, t = tanh_approx(u * fmaf(u2, GELU_B, GELU_A));
    return fmaf(u * fmaf(u2, 1.5f * GELU_B, 0.5f * GELU_A), fmaf(-t, t, 1), fmaf(t, 0.5f, 0.5f));
}

/* 1 / (1 + e^-x); both instructions are exact to 2^-22. */
static __device__ inline float logistic(float x)
{
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1 + e));
    return s;
}

/* Offset of the thread's 16-byte row in a piece; the row of 16 tokens later is 2,048 bytes
 * further. */
static __device__ inline uint32_t offset_in_piece()
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane % 8;
    return (row + lane / 16 * 8) * 128 + (((2 * warp + lane / 8 % 2) ^ row) << 4);
}

/* Feature of the thread's row 0 or 1 in a half tile. */
static __device__ inline int feature_of(const PingpongTile &tile, int half, int row)
{
    return tile.feature + SIDE * half + 16 * (threadIdx.x / 32 % 4) + 8 * row +
           threadIdx.x % 32 / 4;
}

/* Writes u, then gelu(u), of a third of a half tile. */
static __device__ inline void gelu_pieces(const PingpongShared &r, const float *d,
                                          const float bias[2], Ring<PIECES> &ring)
{
    const uint32_t offset = r.piece + offset_in_piece();
#pragma unroll
    for (int kind = 0; kind < 2; kind++, ring.next()) {
        mbarrier_wait(r.spare + 8 * ring.at, ring.phase ^ 1);
#pragma unroll
        for (int n = 0; n < SIDE / 16; n++) {
            uint32_t x[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float low = d[8 * n + 2 * q] + bias[q % 2];
                const float high = d[8 * n + 2 * q + 1] + bias[q % 2];
                x[q] = kind == 0 ? bf16x2_pack(low, high)
                                 : bf16x2_pack(gelu_approx(low), gelu_approx(high));
            }
            stmatrix_trans(offset + ring.at * PIECE_BYTES + 2048 * n, x);
        }
        piece_made(r, ring.at);
    }
}

/* Replaces u in its piece by d gelu'(u) and adds that to the sums. */
static __device__ inline void dgelu_piece(const PingpongShared &r, const float *d, float sum[2],
                                          Ring<PIECES> &ring)
{
    const uint32_t offset = r.piece + offset_in_piece() + ring.at * PIECE_BYTES;
    uint32_t x[SIDE / 4];
    mbarrier_wait(r.ready + 8 * ring.at, ring.phase);
#pragma unroll
    for (int n = 0; n < SIDE / 16; n++) ldmatrix_trans(offset + 2048 * n, x + 4 * n);
#pragma unroll
    for (int q = 0; q < SIDE / 4; q++) {
        const float2 u = bf16x2_floats(x[q]);
        const float low = d[2 * q] * gelu_slope(u.x), high = d[2 * q + 1] * gelu_slope(u.y);
        sum[q % 2] += low + high;
        x[q] = bf16x2_pack(low, high);
    }
#pragma unroll
    for (int n = 0; n < SIDE / 16; n++) stmatrix_trans(offset + 2048 * n, x + 4 * n);
    piece_made(r, ring.at);
    ring.next();
}

/* Replaces gate and up in their pieces: dgate = d up s (1 + gate (1 - s)), dup = d gate s. */
static __device__ inline void dswiglu_piece(const PingpongShared &r, const float *d,
                                            Ring<PIECES> &ring)
{
    typedef Pieces<EPILOGUE_DSWIGLU> P;
    const uint32_t offset = r.piece + offset_in_piece() + ring.at * PIECE_BYTES;
    uint32_t x[P::ROWS / 4], y[P::ROWS / 4];
    mbarrier_wait(r.ready + 8 * ring.at, ring.phase);
#pragma unroll
    for (int n = 0; n < P::ROWS / 16; n++) {
        ldmatrix_trans(offset + 2048 * n, x + 4 * n);
        ldmatrix_trans(offset + P::BYTES + 2048 * n, y + 4 * n);
    }
#pragma unroll
    for (int q = 0; q < P::ROWS / 4; q++) {
        const float2 gate = bf16x2_floats(x[q]), up = bf16x2_floats(y[q]);
        const float s = logistic(gate.x), t = logistic(gate.y), low = d[2 * q], high = d[2 * q + 1];
        const float silu = gate.x * s, silu2 = gate.y * t;
        x[q] = bf16x2_pack(low * up.x * fmaf(silu, 1 - s, s), high * up.y * fmaf(silu2, 1 - t, t));
        y[q] = bf16x2_pack(low * silu, high * silu2);
    }
#pragma unroll
    for (int n = 0; n < P::ROWS / 16; n++) {
        stmatrix_trans(offset + 2048 * n, x + 4 * n);
        stmatrix_trans(offset + P::BYTES + 2048 * n, y + 4 * n);
    }
    piece_made(r, ring.at);
    ring.next();
}

/* Adds the sums of the four lanes that share a row. */
static __device__ inline void put_sum(const PingpongArgs &args, const PingpongTile &tile,
                                      int feature, float sum)
{
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (threadIdx.x % 4 == 0 && feature < args.width)
        args.part[(int64_t)tile.row * args.width + feature] = sum;
}

template <EpilogueKind KIND>
static __device__ inline void epilogue_tile(const PingpongShared &r, const PingpongArgs &args,
                                            int j, const PingpongTile &tile,
                                            const float (&d)[HALVES][PART])
{
    typedef Pieces<KIND> P;
    const int group = threadIdx.x / WARPGROUP;
    Ring<PIECES> ring(j * (KIND == EPILOGUE_GELU ? 2 : 1) * P::TILE);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        float bias[2] = {}, sum[2] = {};
        for (int row = 0; row < 2 && KIND == EPILOGUE_GELU && args.bias; row++) {
            const int feature = feature_of(tile, half, row);
            if (feature < args.width) bias[row] = __bfloat162float(args.bias[feature]);
        }
#pragma unroll
        for (int i = 0; i < P::HALF; i++) {
            const float *mine = &d[half][i * (PART / P::HALF)];
            if (KIND == EPILOGUE_GELU)
                gelu_pieces(r, mine, bias, ring);
            else if (KIND == EPILOGUE_DGELU)
                dgelu_piece(r, mine, sum, ring);
            else
                dswiglu_piece(r, mine, ring);
        }
        for (int row = 0; row < 2 && KIND == EPILOGUE_DGELU && args.part; row++)
            put_sum(args, tile, feature_of(tile, half, row), sum[row]);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); /* all warps have finished */
    if (threadIdx.x % WARPGROUP == 0) mbarrier_arrive(r.epilogue_order + 8 * (group == 0));
}

#endif
