/* token_row.cuh -- a block's row of logits, held while it is needed, and the prefetch of the next
 * row.
 *
 *     pieces of a thread   0 .. held       .. + REST    the rest
 *     held in              shared memory   registers    nothing: read again, from L2
 *
 * Thread i of N has the pieces i, i + N, .. of eight columns, and uses only data that it copied
 * itself, so no barrier is needed. Copies to shared memory are committed in groups of pieces, which
 * complete in order. */
#ifndef DEVICE_CUDA_TOKEN_ROW_CUH
#define DEVICE_CUDA_TOKEN_ROW_CUH

#include <cuda_pipeline.h>

#include "device/cuda/value.cuh"

enum { ROW_GROUP = 4, MAX_ROW_GROUPS = 4, NO_ROW = -1 };

template <int N, int W, DType T> struct TokenRow {
    enum { WORDS = T == BF16 ? 1 : 2 };                     /* uint4 per piece */
    enum { BYTES = W * (T == BF16 ? 2 : 4) };               /* of a piece */
    enum { REST = W > 1 && T == BF16 &&N == 1024 ? 2 : 0 }; /* if registers suffice */
    enum { IN_REGISTERS = REST > 0 ? REST : 1 };
    Tensor logits;
    uint4 *smem;            /* [held][WORDS][N] */
    int held, pieces, done; /* done: rows so far */
    PackedElements<W> rest[IN_REGISTERS];

    __device__ bool has(int k) const { return (int)threadIdx.x + k * N < pieces; }
    /* True if every thread has pieces k, .. of a group in shared memory. */
    __device__ bool is_full(int k) const
    {
        return k + ROW_GROUP <= held && (k + ROW_GROUP) * N <= pieces;
    }
    /* This thread's first piece of a row; piece k is piece_offset(k) bytes further. */
    __device__ char *first(const Tensor &t, int64_t row) const
    {
        return (char *)t.data +
               (row * t.stride[0] + (int64_t)threadIdx.x * W * (W == 1 ? t.stride[1] : 1)) *
                   (BYTES / W);
    }
    __device__ int64_t piece_offset(const Tensor &t, int k) const
    {
        return (int64_t)k * (N * BYTES) * (W == 1 ? t.stride[1] : 1);
    }
    /* A piece past the end: changes neither a maximum nor a sum of powers. */
    static __device__ PackedElements<W> none()
    {
        PackedElements<W> p;
#pragma unroll
        for (int i = 0; i < W; i++) p.word[i] = T == F32 ? 0xff800000u : 0xff80ff80u; /* -inf */
        return p;
    }
    __device__ PackedElements<W> load(int64_t row, int k) const
    {
        if (!has(k)) return none();
        return piece_load<W>(first(logits, row) + piece_offset(logits, k), T, 0);
    }
    __device__ PackedElements<W> take(int k) const
    {
        const uint4 *at = smem + k * WORDS * N + threadIdx.x, a = at[0];
        PackedElements<W> p;
        p.word[0] = a.x, p.word[1 % W] = a.y, p.word[2 % W] = a.z, p.word[3 % W] = a.w;
        if (WORDS == 2) {
            const uint4 b = at[N];
            p.word[4 % W] = b.x, p.word[5 % W] = b.y, p.word[6 % W] = b.z, p.word[7 % W] = b.w;
        }
        return p;
    }
    /* True if this thread holds piece k; all threads do in a full group. */
    template <bool FULL> __device__ bool holds(int k) const { return FULL || (k < held && has(k)); }
    /* Prefetches pieces k, .. of a row; `from` is this thread's first piece of it. NULL: commits an
     * empty group, so that groups can be counted. */
    template <bool FULL> __device__ void fetch_group(const char *from, int k) const
    {
        uint4 *to = smem + k * WORDS * N + threadIdx.x;
        if (from) {
            from += (int64_t)k * (N * BYTES);
#pragma unroll
            for (int i = 0; i < ROW_GROUP; i++)
#pragma unroll
                for (int word = 0; word < WORDS; word++)
                    if (holds<FULL>(k + i))
                        __pipeline_memcpy_async(to + (i * WORDS + word) * N,
                                                from + i * N * BYTES + 16 * word, 16);
        }
        __pipeline_commit();
    }
    __device__ const char *first_or_null(int64_t row) const
    {
        return row == NO_ROW ? NULL : first(logits, row);
    }
    __device__ void load_rest(int64_t row)
    {
#pragma unroll
        for (int i = 0; i < REST; i++)
            if (row != NO_ROW) rest[i] = load(row, held + i);
    }
    __device__ void fetch(int64_t row)
    {
        for (int k = 0; k < held; k += ROW_GROUP) fetch_group<false>(first(logits, row), k);
        load_rest(row);
    }
    __device__ int groups() const { return (held + ROW_GROUP - 1) / ROW_GROUP; }
    /* Waits for a group after which `later` more were committed. */
    static __device__ void wait(int later)
    {
        if (later == 0) __pipeline_wait_prior(0);
        if (later == 1) __pipeline_wait_prior(1);
        if (later == 2) __pipeline_wait_prior(2);
        if (later >= 3) __pipeline_wait_prior(3);
    }
};

/* The largest element of P pieces; bf16 two at a time. */
template <DType T, int W, int P>
static __device__ inline float pieces_max(const PackedElements<W> (&p)[P])
{
    if (T == BF16 && W > 1) {
        __nv_bfloat162 largest = *(const __nv_bfloat162 *)&p[0].word[0];
#pragma unroll
        for (int i = 0; i < P; i++)
#pragma unroll
            for (int w = 0; w < W / 2; w++)
                largest = __hmax2(largest, *(const __nv_bfloat162 *)&p[i].word[w]);
        return fmaxf(__low2float(largest), __high2float(largest));
    }
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < P; i++) {
        float x[W];
        piece_floats(p[i], T, x);
#pragma unroll
        for (int e = 0; e < W; e++) largest = fmaxf(largest, x[e]);
    }
    return largest;
}

#endif
