/* value.cuh -- f32 and bf16 elements as floats, one, four or eight at a time, and reductions over
 * threads.
 *
 * PackedElements, a piece, holds elements as loaded, in their storage format; piece_floats converts
 * it. Kernels load all their pieces before they convert the first, so that the loads are in flight
 * together. */
#ifndef DEVICE_CUDA_VALUE_CUH
#define DEVICE_CUDA_VALUE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "device/cuda/walk.h"

template <int W> struct PackedElements {
    uint32_t word[W]; /* f32: one element each; bf16: two */
};

static __device__ inline float bf16_low(uint32_t word) { return __uint_as_float(word << 16); }
static __device__ inline float bf16_high(uint32_t word)
{
    return __uint_as_float(word & 0xffff0000u);
}

static __device__ inline uint32_t bf16_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Elements [at, at + W) of row-major storage; W of 4 and 8 must be aligned. */
template <int W>
static __device__ inline PackedElements<W> piece_load(const void *base, DType dtype, int64_t at)
{
    PackedElements<W> p;
    if (W == 1) {
        p.word[0] = dtype == BF16 ? ((const uint16_t *)base)[at] : ((const uint32_t *)base)[at];
        return p;
    }
    if (W == 4 && dtype == BF16) {
        const uint2 a = *(const uint2 *)((const char *)base + 2 * at);
        p.word[0] = a.x, p.word[1 % W] = a.y;
        return p;
    }
    const uint4 *from = (const uint4 *)((const char *)base + (dtype == BF16 ? 2 * at : 4 * at));
    const uint4 a = from[0];
    p.word[0] = a.x, p.word[1 % W] = a.y, p.word[2 % W] = a.z, p.word[3 % W] = a.w;
    if (W == 8 && dtype == F32) {
        const uint4 b = from[1];
        p.word[4 % W] = b.x, p.word[5 % W] = b.y, p.word[6 % W] = b.z, p.word[7 % W] = b.w;
    }
    return p;
}

template <int W>
static __device__ inline void piece_floats(const PackedElements<W> &p, DType dtype, float *x)
{
    if (dtype == F32) {
#pragma unroll
        for (int i = 0; i < W; i++) x[i] = __uint_as_float(p.word[i]);
    } else if (W == 1) {
        x[0] = bf16_low(p.word[0]);
    } else {
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            x[2 * i] = bf16_low(p.word[i]);
            x[(2 * i + 1) % W] = bf16_high(p.word[i]);
        }
    }
}

template <int W>
static __device__ inline void piece_store(void *base, DType dtype, int64_t at, const float *x)
{
    if (W == 1) {
        if (dtype == BF16)
            ((__nv_bfloat16 *)base)[at] = __float2bfloat16(x[0]);
        else
            ((float *)base)[at] = x[0];
        return;
    }
    if (W == 4 && dtype == BF16) {
        *(uint2 *)((char *)base + 2 * at) =
            make_uint2(bf16_pair(x[0], x[1 % W]), bf16_pair(x[2 % W], x[3 % W]));
    } else if (dtype == BF16) {
        *(uint4 *)((char *)base + 2 * at) =
            make_uint4(bf16_pair(x[0], x[1 % W]), bf16_pair(x[2 % W], x[3 % W]),
                       bf16_pair(x[4 % W], x[5 % W]), bf16_pair(x[6 % W], x[7 % W]));
    } else {
        float4 *to = (float4 *)((char *)base + 4 * at);
        to[0] = make_float4(x[0], x[1 % W], x[2 % W], x[3 % W]);
        if (W == 8) to[1] = make_float4(x[4 % W], x[5 % W], x[6 % W], x[7 % W]);
    }
}

static __device__ inline float value_get(const void *base, DType dtype, int64_t at)
{
    return dtype == BF16 ? __bfloat162float(((const __nv_bfloat16 *)base)[at])
                         : ((const float *)base)[at];
}

static __device__ inline void value_set(void *base, DType dtype, int64_t at, float x)
{
    piece_store<1>(base, dtype, at, &x);
}

/* x rounded to the type. */
static __device__ inline float value_round(DType dtype, float x)
{
    return dtype == BF16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

/* a = keep * a + x; keep == 0 does not read a. */
static __device__ inline void value_keep(void *base, DType dtype, int64_t at, float keep, float x)
{
    if (keep != 0) x = value_round(dtype, x) + keep * value_get(base, dtype, at);
    value_set(base, dtype, at, x);
}

/* Sum and maximum over a warp, equal in all lanes, in a fixed order. */
template <typename T> static __device__ inline T warp_sum(T x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ inline float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* The same over a group of G threads: a warp, or a whole block of at most 1024 threads. */
template <int G, typename T> static __device__ inline T group_sum(T x)
{
    if (G == 32) return warp_sum(x);
    __shared__ T part[32];
    x = warp_sum(x);
    __syncthreads(); /* the previous sum has been read */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < G / 32 ? part[threadIdx.x % 32] : (T)0);
}

template <int G> static __device__ inline float group_max(float x)
{
    if (G == 32) return warp_max(x);
    __shared__ float part[32];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x % 32 % (G / 32)]);
}

/* True if WIDE_PIECE elements of a row of the matrix may be one piece. */
enum { WIDE_PIECE = 8 };
static inline bool wide_rows(const Tensor *t)
{
    return t->stride[1] == 1 && t->n[1] % WIDE_PIECE == 0 && t->stride[0] % WIDE_PIECE == 0 &&
           (uintptr_t)t->data % 16 == 0;
}

static inline int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

#endif
