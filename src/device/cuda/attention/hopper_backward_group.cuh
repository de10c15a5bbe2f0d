/* hopper_backward_group.cuh -- the work of a warpgroup of the backward kernel, and the store of its
 * sums.
 *
 * Sums of a warpgroup: 64 rows; a thread has rows 16 warp + lane / 4 and 8 further, and columns
 * 2 (lane % 4) and the next of every 8. Scores are transposed: rows are keys, columns queries. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_GROUP_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_GROUP_CUH

#include "device/cuda/attention/hopper_backward.cuh"

/* ---- store ---- */

/* Transposes 4 x 4 words among four lanes: afterwards lane i has word i of each. */
static __device__ inline void quad_transpose(uint32_t (&w)[4])
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & step)) {
                const uint32_t send = lane & step ? w[i] : w[i + step];
                const uint32_t got = __shfl_xor_sync(~0u, send, step);
                if (lane & step)
                    w[i] = got;
                else
                    w[i + step] = got;
            }
}

/* y = keep y + x for eight bf16 in 16 bytes. */
static __device__ inline void eight_keep(void *y, const uint32_t (&x)[4], float keep)
{
    uint4 out = make_uint4(x[0], x[1], x[2], x[3]);
    if (keep != 0) {
        const uint4 old = *(const uint4 *)y;
        const uint32_t was[4] = {old.x, old.y, old.z, old.w};
        uint32_t now[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            now[i] = bf16_pair(bf16_low(x[i]) + keep * bf16_low(was[i]),
                               bf16_high(x[i]) + keep * bf16_high(was[i]));
        out = make_uint4(now[0], now[1], now[2], now[3]);
    }
    *(uint4 *)y = out;
}

/* True if eight channels of a row can be read and written as one word of 16 bytes. */
static __device__ inline bool rows_of_words(const Tensor &x)
{
    return x.dtype == BF16 && x.stride[2] == 1 && x.stride[0] % 8 == 0 && x.stride[1] % 8 == 0 &&
           (uintptr_t)x.data % 16 == 0;
}

/* x[row .., head, channel ..] = keep x + scale d, for the sums d of a warpgroup. */
template <int N>
static __device__ inline void sums_store(const float (&d)[N], const Tensor &x, int row, int head,
                                         int channel, float scale, float keep)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % GROUP_WARPS;
    const bool words = rows_of_words(x);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = row + 16 * warp + 8 * half + lane / 4;
        const bool live = at < x.n[0];
        const int64_t from = row_offset(x, at, head);
#pragma unroll
        for (int c = 0; c < N; c += 16) {
            uint32_t w[4];
            if (words) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = bf16_pair(d[c + 4 * i + 2 * half] * scale,
                                     d[c + 4 * i + 2 * half + 1] * scale);
                quad_transpose(w);
                const int64_t here = from + channel + 2 * c + 8 * (lane % 4);
                if (live) eight_keep((bf16 *)x.data + here, w, keep);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (live)
                    pair_keep(x, from, channel + 2 * c + 8 * i + 2 * (lane % 4), keep,
                              d[c + 4 * i + 2 * half] * scale, d[c + 4 * i + 2 * half + 1] * scale);
        }
    }
}

/* ---- the tile of a warpgroup ---- */

/* A warpgroup's place and counts. */
typedef struct {
    int group, warp, lane;
    int n, items;     /* tiles of queries, and items, so far */
    bool unseen;      /* no row sees some key of the item */
    uint32_t k, mine; /* address of k of the item; offset of this group's rows in boxes of keys */
} GroupState;

static __device__ inline void warp_arrive(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_at(barrier));
}

/* A descriptor is its start, which the compiler must not compute ahead of the loop and keep, and an
 * offset in bytes. */
static __device__ inline uint32_t operand_start(uint32_t at, int next = 16)
{
    uint32_t start = at >> 4 | (uint32_t)(next >> 4) << 16;
    asm volatile("" : "+r"(start));
    return start;
}

static __device__ inline uint64_t operand_at(uint32_t start, int bytes)
{
    return (uint64_t)(start + bytes / 16) | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

/* s = (64 rows of a) b', of operands with D channels. */
template <class B>
static __device__ inline void channels_multiply(float (&s)[B::BM / 2], uint32_t a, uint32_t b)
{
    const uint32_t from_a = operand_start(a), from_b = operand_start(b);
#pragma unroll
    for (int c = 0; c < B::D; c += 16)
        wgmma_add<0, 0>(s, operand_at(from_a, c / 64 * COLUMN_BOX + c % 64 * 2),
                        operand_at(from_b, c / 64 * B::QUERY_BOX + c % 64 * 2), c > 0);
    wgmma_commit();
}

/* sum = keep sum + w b: w in registers, [64 keys, BM queries]; b [BM queries, D channels]. */
template <class B>
static __device__ inline void
queries_multiply(float (&sum)[B::D / 2], const uint32_t (&w)[B::BM / 16][4], uint32_t b, bool keep)
{
    const uint32_t from = operand_start(b, B::QUERY_BOX);
#pragma unroll
    for (int i = 0; i < B::BM / 16; i++)
        wgmma_add_registers<1>(sum, w[i], operand_at(from, 2048 * i), keep || i > 0);
    wgmma_commit();
}

/* dq = ds' k, of 64 queries and 64 channels: two row parts, or two channel parts. */
template <class B>
static __device__ inline void keys_multiply(float (&dq)[32], uint32_t ds, uint32_t k, int group)
{
    const uint32_t from_ds = operand_start(ds + (B::DS_BOXES > 1 ? group * COLUMN_BOX : 0));
    const uint32_t from_k = operand_start(k + (B::DS_BOXES > 1 ? 0 : group * COLUMN_BOX));
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++)
        wgmma_add<1, 1>(dq, operand_at(from_ds, 2048 * i), operand_at(from_k, 2048 * i), i > 0);
    wgmma_commit();
}

/* Sets p to 0 where a row does not see the key. */
template <int N, bool TWO>
static __device__ inline void weights_mask(float (&p)[N], const int4 *ranges, int key)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int4 *at = &ranges[8 * i + 2 * (lane % 4) + e];
            int4 r = make_int4(0, 0, 0, 0);
            if (TWO)
                r = *at;
            else
                r.x = at->x, r.y = at->y;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned j = key + 8 * half;
                if (j - r.x >= (unsigned)r.y && (!TWO || j - r.z >= (unsigned)r.w))
                    p[4 * i + 2 * half + e] = 0;
            }
        }
}

/* s = p = exp(s - lse). partial: number of ranges of the mask, or 0. */
template <class B>
static __device__ inline void weights_of(float (&s)[B::BM / 2], const float *lses,
                                         const int4 *ranges, float scale, int partial, int key)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < B::BM / 8; i++) {
        const float2 lse = *(const float2 *)&lses[8 * i + 2 * (lane % 4)];
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * i + e] = exp2_fast(s[4 * i + e] * scale - (e % 2 ? lse.y : lse.x));
    }
    if (partial == 1) weights_mask<B::BM / 2, false>(s, ranges, key);
    if (partial == 2) weights_mask<B::BM / 2, true>(s, ranges, key);
}

/* dp = ds = p (dp - delta). dp of a key that no row sees may be NaN. */
template <class B>
static __device__ inline void slopes_of(const float (&p)[B::BM / 2], float (&dp)[B::BM / 2],
                                        const float *deltas, bool unseen)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < B::BM / 8; i++) {
        const float2 delta = *(const float2 *)&deltas[8 * i + 2 * (lane % 4)];
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[4 * i + e] = p[4 * i + e] * (dp[4 * i + e] - (e % 2 ? delta.y : delta.x));
    }
    if (!unseen) return;
#pragma unroll
    for (int i = 0; i < B::BM / 2; i++)
        if (p[i] == 0) dp[i] = 0;
}

/* Sums to bf16 operands, one for each 16 queries. */
template <int N>
static __device__ inline void operands_of(const float (&x)[N], uint32_t (&w)[N / 8][4])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) w[i / 4][i % 4] = bf16x2_pack(x[2 * i], x[2 * i + 1]);
}

/* Stores ds [keys][queries] for the multiplication with k. */
template <class B>
static __device__ inline void slopes_store(const uint32_t (&w)[B::BM / 16][4], char *ds,
                                           const GroupState &g)
{
    const int row = 64 * g.group + 16 * g.warp + g.lane % 16;
    const uint32_t at = shared_at(ds) + 128 * row;
#pragma unroll
    for (int i = 0; i < B::BM / 16; i++) {
        const int piece = 2 * (i % 4) + g.lane / 16;
        stmatrix(at + i / 4 * COLUMN_BOX + 16 * (piece ^ row % 8), w[i]);
    }
}

/* Queries that see nothing may hold anything: sets their rows to 0. Both groups do, each for
 * itself, since they get here at different times. */
template <class B>
static __device__ inline void blind_clear(char *q, char *dout, const int4 *ranges, int group)
{
    const int i = threadIdx.x % GROUP_THREADS;
    if (i < B::BM && ranges[i].y == 0 && ranges[i].w == 0)
        for (int b = 0; b < B::BOXES; b++)
            for (int c = 0; c < 128; c += 16) {
                *(uint4 *)(q + b * B::QUERY_BOX + 128 * i + c) = make_uint4(0, 0, 0, 0);
                *(uint4 *)(dout + b * B::QUERY_BOX + 128 * i + c) = make_uint4(0, 0, 0, 0);
            }
    tma_store_fence();
    named_sync(4 + group, GROUP_THREADS);
}

/* The same for keys that no row sees, once for both. */
template <class B> static __device__ inline void unseen_clear(char *k, const uint4 &seen)
{
    const int j = threadIdx.x;
    const uint32_t word = j < 32 ? seen.x : j < 64 ? seen.y : j < 96 ? seen.z : seen.w;
    if (j < KEYS && !(word >> j % 32 & 1))
        for (int b = 0; b < B::BOXES; b++)
            for (int c = 0; c < 128; c += 16)
                *(uint4 *)(k + b * COLUMN_BOX + 128 * j + c) = make_uint4(0, 0, 0, 0);
    tma_store_fence();
    named_sync(1, GROUPS * GROUP_THREADS);
}

/* Adds four floats to device memory. */
static __device__ inline void global_add(float *to, const float *x)
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* Adds half a tile of dq to its sums, in no order. */
static __device__ inline void dq_add(const float (&dq)[32], float *sum)
{
    sum += threadIdx.x % GROUP_THREADS * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) global_add(sum + 4 * GROUP_THREADS * i, dq + 4 * i);
}

#endif
