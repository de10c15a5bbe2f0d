/* fp8.cuh -- elements of 8 bits on the GPU: scales and conversion, the numbers of base/fp8.h, and
 * tiles that are written along rows and transposed.
 *
 *     x [128 tokens, 128 features]          a tile of a block of 256 threads
 *     y [t, i]    8 bytes of a row by a thread
 *     z [i, t]    4 tokens by a thread, into shared memory; then whole columns of 128 bytes */
#ifndef DEVICE_CUDA_FP8_CUH
#define DEVICE_CUDA_FP8_CUH

#include <cuda_fp8.h>
#include "base/fp8.h"
#include "device/cuda/value.cuh"

static __host__ __device__ constexpr __nv_fp8_interpretation_t fp8_kind(DType t)
{
    return t == E4M3 ? __NV_E4M3 : __NV_E5M2;
}

/* As fp8_scale of base/fp8.h, with divisions that round to nearest. */
static __device__ inline Fp8Scale scale_of(DType t, float amax)
{
    const float least = 7.888609052210118e-31f; /* 2^-100 */
    const float largest = t == E4M3 ? 448.0f : 57344.0f;
    Fp8Scale s = {1, 1};
    if (amax == 0) return s;
    const float a = amax < least ? least : amax;
    s.scale = __fdiv_rn(a, largest);
    s.inverse = __fdiv_rn(largest, a);
    return s;
}

/* Four codes, the first in the low byte; NaN is 0x7f. */
template <DType TYPE> static __device__ inline uint32_t fp8_four(float a, float b, float c, float d)
{
    const uint32_t low =
        __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, fp8_kind(TYPE));
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, fp8_kind(TYPE));
    return low | high << 16;
}

template <DType TYPE> static __device__ inline uint2 fp8_eight(const float *x, float inverse)
{
    return make_uint2(
        fp8_four<TYPE>(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
        fp8_four<TYPE>(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse));
}

/* Four words of four bytes each, transposed: byte k of word j becomes byte j of word k. */
static __device__ inline void transpose_bytes(const uint32_t in[4], uint32_t out[4])
{
    const uint32_t a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[0], in[1], 0x7362);
    const uint32_t c = __byte_perm(in[2], in[3], 0x5140), d = __byte_perm(in[2], in[3], 0x7362);
    out[0] = __byte_perm(a, c, 0x5410), out[1] = __byte_perm(a, c, 0x7632);
    out[2] = __byte_perm(b, d, 0x5410), out[3] = __byte_perm(b, d, 0x7632);
}

enum { FP8_SIDE = 128, FP8_THREADS = 256, FP8_PASSES = 2 };

/* A tile in shared memory, transposed: 32 words of four tokens for each of 128 features. */
typedef uint32_t Fp8Tile[FP8_SIDE * FP8_SIDE / 4];

/* The four tokens from 4 * `tokens` on and the eight features from 8 * `features` on of a thread in
 * one of its passes. */
typedef struct {
    int tokens, features;
} Fp8Piece;

static __device__ inline Fp8Piece fp8_piece(int pass)
{
    return {(int)threadIdx.x / 16 + 16 * pass, (int)threadIdx.x % 16};
}

/* Puts a piece, four rows of eight codes, into the tile. Words of a feature are permuted, so that
 * the threads of a warp write to 32 banks. */
static __device__ inline void fp8_tile_put(Fp8Tile tile, Fp8Piece at, const uint2 code[4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t row[4], word[4];
#pragma unroll
        for (int k = 0; k < 4; k++) row[k] = half ? code[k].y : code[k].x;
        transpose_bytes(row, word);
#pragma unroll
        for (int j = 0; j < 4; j++)
            tile[(8 * at.features + 4 * half + j) * (FP8_SIDE / 4) +
                 (at.tokens ^ (2 * at.features))] = word[j];
    }
}

/* Writes the tile to z [features, tokens], from (feature, token) on; all threads of the block take
 * part. Rows of z are aligned to four bytes. */
static __device__ inline void fp8_tile_write(const Fp8Tile tile, const Tensor &z, int64_t feature,
                                             int64_t token)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t left = z.n[1] - token - 4 * lane;
#pragma unroll
    for (int i = 0; i < FP8_SIDE / (FP8_THREADS / 32); i++) {
        const int column = warp * (FP8_SIDE / (FP8_THREADS / 32)) + i;
        if (feature + column >= z.n[0] || left <= 0) continue;
        const uint32_t word = tile[column * (FP8_SIDE / 4) + (lane ^ (2 * (column / 8)))];
        uint8_t *to = (uint8_t *)z.data + (feature + column) * z.stride[0] + token + 4 * lane;
        if (left >= 4) {
            *(uint32_t *)to = word;
        } else {
            for (int k = 0; k < left; k++) to[k] = (uint8_t)(word >> 8 * k);
        }
    }
}

#endif
