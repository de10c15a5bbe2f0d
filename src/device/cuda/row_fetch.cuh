/* row_fetch.cuh -- rows that are fetched ahead: a group of threads has a row at a time, K pieces of
 * eight columns a thread, and brings the next ones into shared memory while it works on this.
 *
 *     block     group 0   rows  q, q + Q, ..     pieces  lane, lane + G, ..
 *               group 1   rows  q + 1, ..
 *
 * A thread reads what it fetched itself, so no barrier stands between. */
#ifndef DEVICE_CUDA_ROW_FETCH_CUH
#define DEVICE_CUDA_ROW_FETCH_CUH

#include <cuda_pipeline.h>

#include "device/cuda/value.cuh"

enum { FETCH_THREADS = 256 };
/* Pieces a thread, at most: rows of 8192 in bf16, of 4096 in f32. */
enum { FETCH_MOST_BF16 = 4, FETCH_MOST_F32 = 2 };

/* Offset of a row over the first dims, of which there are one or two. Rows are fewer than 2^32
 * (rows_of): a division of 64 bits costs more than the rest of a short row. */
static __device__ inline int64_t row_at(const Tensor &t, int dims, int64_t row)
{
    if (dims == 1) return row * t.stride[0];
    const uint32_t n = (uint32_t)t.n[1], first = (uint32_t)row / n;
    return first * t.stride[0] + ((uint32_t)row - first * n) * t.stride[1];
}

static Err rows_of(const Tensor &t, int64_t *out)
{
    int64_t rows = 1;
    for (int d = 0; d < t.ndim - 1; d++) rows *= t.n[d];
    if (rows > UINT32_MAX)
        return err_fail(
            ERR_CONFIG,
            "cuda: a norm of %lld rows; the most is 2^32 - 1, use a smaller batch.micro",
            (long long)rows);
    *out = rows;
    return OK;
}

/* A row's mean or rstd. */
static __device__ inline float stat_at(const Tensor &t, int64_t row)
{
    return t.data ? ((const float *)t.data)[row_at(t, t.ndim, row)] : 0;
}

/* N sums over a group of G threads, of which a block has several: all threads of the block call, and
 * `part` is another one than in the call before. */
template <int G, int N>
static __device__ inline void sum_of_group(float (&x)[N], float (*part)[N][FETCH_THREADS / 32])
{
#pragma unroll
    for (int step = (G < 32 ? G : 32) / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
    if (G <= 32) return;
    const int warp = threadIdx.x / 32, first = threadIdx.x / G * (G / 32);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (threadIdx.x % 32 == 0) (*part)[i][warp] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
#pragma unroll
        for (int w = 0; w < G / 32; w++) x[i] += (*part)[i][first + w];
    }
}

/* S stages of N rows. */
template <int G, int K, DType T, int S, int N> struct RowFetch {
    enum { W = WALK_WIDE, WORDS = T == BF16 ? 1 : 2 }; /* uint4 of a piece */
    enum { GROUPS = FETCH_THREADS / G };
    enum { BYTES = 16 * S * N * K * WORDS * FETCH_THREADS }; /* of `stage` */
    uint4 *stage;                                            /* [S][N][K][WORDS][threads] */
    int lane;
    int pieces;

    __device__ uint4 *at(int s, int which, int k, int word) const
    {
        return stage + (((s * N + which) * K + k) * WORDS + word) * FETCH_THREADS + threadIdx.x;
    }
    /* Has the thread a k-th piece, and where does it begin? */
    __device__ bool has(int k) const { return lane + k * G < pieces; }
    __device__ int64_t column(int k) const { return (int64_t)(lane + k * G) * W; }
    __device__ void fetch(int s, int which, const Tensor &t, int64_t row) const
    {
        const char *from = (const char *)t.data + row_at(t, t.ndim - 1, row) * (T == BF16 ? 2 : 4);
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int word = 0; word < WORDS; word++)
                if (has(k))
                    __pipeline_memcpy_async(at(s, which, k, word),
                                            from + ((int64_t)(lane + k * G) * WORDS + word) *
                                                       sizeof(uint4),
                                            sizeof(uint4));
    }
    __device__ void floats(int s, int which, int k, float *v) const
    {
        Piece<W> p;
        const uint4 a = *at(s, which, k, 0);
        p.word[0] = a.x, p.word[1] = a.y, p.word[2] = a.z, p.word[3] = a.w;
        if (WORDS == 2) {
            const uint4 b = *at(s, which, k, WORDS - 1);
            p.word[4] = b.x, p.word[5] = b.y, p.word[6] = b.z, p.word[7] = b.w;
        }
        piece_floats(p, T, v);
    }
};

static inline int64_t fetch_most(DType type)
{
    return FETCH_THREADS * WALK_WIDE * (type == BF16 ? FETCH_MOST_BF16 : FETCH_MOST_F32);
}

/* Runs Launch<G, K, T>::run(work, stream) for the smallest group that holds a row. */
template <template <int, int, DType> class Launch, class Work, DType T, int MOST>
static Err fetch_pick(const Work &m, int64_t width, cudaStream_t stream)
{
    const int64_t pieces = width / WALK_WIDE;
    const int third = MOST < 4 ? 1 : 3; /* f32 has two pieces a thread, and larger groups */
    if (pieces <= 16) return Launch<16, 1, T>::run(m, stream);
    if (pieces <= 32) return Launch<32, 1, T>::run(m, stream);
    if (pieces <= 64) return Launch<32, 2, T>::run(m, stream);
    if (pieces <= 32 * third) return Launch<32, third, T>::run(m, stream);
    if (pieces <= 32 * MOST) return Launch<32, MOST, T>::run(m, stream);
    if (pieces <= 64 * third) return Launch<64, third, T>::run(m, stream);
    if (pieces <= 64 * MOST) return Launch<64, MOST, T>::run(m, stream);
    if (pieces <= 128 * MOST) return Launch<128, MOST, T>::run(m, stream);
    return Launch<256, MOST, T>::run(m, stream);
}

template <template <int, int, DType> class Launch, class Work>
static Err fetch_run(const Work &m, DType type, int64_t width, cudaStream_t stream)
{
    if (type == BF16) return fetch_pick<Launch, Work, BF16, FETCH_MOST_BF16>(m, width, stream);
    return fetch_pick<Launch, Work, F32, FETCH_MOST_F32>(m, width, stream);
}

#endif
