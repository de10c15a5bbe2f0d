/* along_short.cuh -- shared by the kernels of attention along short sequences: a block has all
 * queries and keys of a sequence and a head in shared memory.
 *
 *     x[e,b,a,h,c]      sequence (e, a) of head h: rows of c channels, stride[1] apart
 *
 *     warp 0   queries  0 .. 15        of 16 WARPS rows; those past the last one are zeros.
 *     warp 1   queries 16 .. 31        Blocks next to each other have heads next to each other,
 *     ..                               whose rows share sectors of memory */
#ifndef DEVICE_CUDA_ATTENTION_ALONG_SHORT_CUH
#define DEVICE_CUDA_ATTENTION_ALONG_SHORT_CUH

#include "device/cuda/attention/along.h"
#include "device/cuda/attention/attention.cuh"

typedef struct {
    Tensor q, k, v, o, lse, dout, dq, dk, dv;
    int t, s, h, places, c; /* queries, keys, heads, places, channels */
    int group, head_at;
    float scale;
} ShortAttention;

/* Where a block works. */
typedef struct {
    int group, place, head;
} ShortBlock;

static __device__ inline ShortBlock short_block(const ShortAttention &a)
{
    const int sequence = blockIdx.x / a.h;
    return {sequence / a.places, sequence % a.places, (int)(blockIdx.x % a.h)};
}

/* Queries, keys and values of a call. */
static inline ShortAttention short_open(const Call *call)
{
    ShortAttention a = {};
    a.q = call->in[0], a.k = call->in[1], a.v = call->in[2];
    a.t = (int)a.q.n[1], a.s = (int)a.k.n[1], a.h = (int)a.q.n[3], a.c = (int)a.q.n[4];
    a.places = (int)a.q.n[2];
    a.group = (int)along_group(call), a.head_at = (int)call->attr.attention.head_at;
    a.scale = (float)call->attr.attention.scale;
    return a;
}

static inline unsigned short_blocks(const ShortAttention &a)
{
    return (unsigned)(a.q.n[0] * a.q.n[2] * a.q.n[3]);
}

/* The first row of a block in x[e,b,a,h,..]. */
static __device__ inline int64_t short_offset(const Tensor &x, const ShortBlock &b, int head)
{
    return b.group * x.stride[0] + b.place * x.stride[2] + head * x.stride[3];
}

/* Starts the copy of a head's rows to a tile; zeros past the last row and channel. */
template <int D, int WARPS>
static __device__ inline void short_load(const ShortAttention &a, const Tensor &x,
                                         const ShortBlock &b, int head, bf16 *tile)
{
    enum { PIECES = D / 8, ALL = 16 * WARPS * PIECES };
    const bf16 *from = (const bf16 *)x.data + short_offset(x, b, head);
    const int rows = (int)x.n[1];
#pragma unroll
    for (int i = threadIdx.x; i < ALL; i += 32 * WARPS) {
        const int row = i / PIECES, c = i % PIECES * 8;
        const bool live = row < rows && c < a.c;
        copy_async(tile + row * Pitch<D>::N + c, live ? from + row * x.stride[1] + c : from, live);
    }
}

/* Rounds 16 rows x D channels of a warp's sums to bf16, through its own 16 rows of a tile, and
 * writes them as whole rows. */
template <int D>
static __device__ inline void short_store(const ShortAttention &a, const Tensor &x,
                                          const ShortBlock &b, int head, const float sum[D / 8][4],
                                          const float share[2], bf16 *tile)
{
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16, rows = (int)x.n[1];
    bf16 *mine = tile + first * Pitch<D>::N, *to = (bf16 *)x.data + short_offset(x, b, head);
    __syncwarp(); /* the rows have been read */
#pragma unroll
    for (int c = 0; c < D / 8; c++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(uint32_t *)(mine + (lane / 4 + 8 * half) * Pitch<D>::N + 8 * c + 2 * (lane % 4)) =
                bf16_pair(sum[c][2 * half] * share[half], sum[c][2 * half + 1] * share[half]);
    __syncwarp();
    for (int i = lane; i < 16 * (D / 8); i += 32) {
        const int row = i / (D / 8), c = i % (D / 8) * 8;
        if (first + row < rows && c < a.c)
            *(uint4 *)(to + (first + row) * x.stride[1] + c) =
                *(const uint4 *)(mine + row * Pitch<D>::N + c);
    }
}

#endif
