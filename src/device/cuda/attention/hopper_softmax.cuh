/* hopper_softmax.cuh -- the softmax of scores in wgmma's accumulators: masks, weights, operands. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_SOFTMAX_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_SOFTMAX_CUH

#include "device/cuda/attention/tiles.cuh"
#include "device/cuda/hopper.cuh"

/* A max that is too small by this many powers of two is kept: weights and sums of up to 2^8 times
 * the usual are as exact, and o need not be rescaled. */
#define RESCALE_AT 8.0f

/* State of the two rows of a thread: lane / 4 and 8 more of the warp's 16. */
typedef struct {
    float row_max[2], sum[2], shrink[2];
} Rows;

/* The number of the thread's columns below x: it has columns 8 j and 8 j + 1. */
static __device__ inline uint32_t columns_below(int x)
{
    const int n = min(max(x, 0), 128);
    return bits_below(n / 8 * 2 + min(n % 8, 2));
}

/* Sets the scores of keys that a row does not see to -inf; key: of the thread's first column. */
template <int N>
static __device__ inline void mask_scores(float (&s)[N], const int4 *ranges, int key)
{
    enum { PART = N / 2 <= 32 ? N / 2 : 16 }; /* scores of a row at a time */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int4 r = ranges[half];
#pragma unroll
        for (int at = 0; at < N / 2; at += PART) {
            const int first = key + 4 * at;
            const uint32_t seen = (columns_below(r.y - first) & ~columns_below(r.x - first)) |
                                  (columns_below(r.w - first) & ~columns_below(r.z - first));
#pragma unroll
            for (int i = 0; i < PART; i++) {
                float &x = s[4 * ((at + i) / 2) + 2 * half + i % 2];
                x = seen >> i & 1 ? x : -INFINITY;
            }
        }
    }
}

/* Turns scores into weights; shrink: the factor of sums so far. */
template <int N> static __device__ inline void weigh(float (&s)[N], Rows &w, float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float before = w.row_max[half];
        float row_max = before, sum = 0;
#pragma unroll
        for (int i = 2 * half; i < N; i += 4) row_max = fmaxf(row_max, fmaxf(s[i], s[i + 1]));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 1));
        row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffffu, row_max, 2));
        if ((row_max - before) * scale <= RESCALE_AT) row_max = before;
        const float base = row_max == -INFINITY ? 0 : row_max * scale;
        w.row_max[half] = row_max;
        w.shrink[half] = exp2_fast(before * scale - base);
#pragma unroll
        for (int i = 2 * half; i < N; i += 4) {
            s[i] = exp2_fast(fmaf(s[i], scale, -base));
            s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -base));
            sum += s[i] + s[i + 1];
        }
        w.sum[half] = w.sum[half] * w.shrink[half] + sum;
    }
}

template <int N> static __device__ inline void rescale(float (&o)[N], const Rows &w)
{
    if (!__any_sync(0xffffffffu, w.shrink[0] != 1 || w.shrink[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= w.shrink[i / 2 % 2];
}

/* The weights as operands a of 16 columns each. */
template <int N> static __device__ inline void pack(uint32_t (&p)[N / 8][4], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) p[i / 4][i % 4] = bf16x2_pack(s[2 * i], s[2 * i + 1]);
}

#endif
