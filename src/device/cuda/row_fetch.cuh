/* row_fetch.cuh -- prefetched rows: a group of threads has one row at a time, K pieces of eight
 * columns per thread, and copies the following rows to shared memory while it computes.
 *
 *     block     group 0   rows  q, q + Q, ..     pieces  lane, lane + G, ..
 *               group 1   rows  q + 1, ..
 *
 * A group is one warp as long as its registers suffice (2048 columns of bf16), then two or four.
 * Such rows are bound by instructions as much as by memory. Therefore a row's statistics and sums
 * need no block-wide barrier, all pieces but the last need no bounds check, and values that do not
 * depend on the row (weights, column sums) stay in registers as floats. This takes most of a
 * thread's 255 registers, so only two blocks of few warps fit an SM.
 *
 * A thread reads only data that it copied itself, so no barrier is needed in between. */
#ifndef DEVICE_CUDA_ROW_FETCH_CUH
#define DEVICE_CUDA_ROW_FETCH_CUH

#include <cuda_pipeline.h>

#include "device/cuda/pdl.cuh"
#include "device/cuda/norm_rows.cuh"

enum { MAX_FETCH_BF16 = 1024, MAX_FETCH_F32 = 512 }; /* in pieces of a row */

/* Bytes from row to row of a tensor, along its first and its second dim. */
typedef struct {
    char *data;
    uint32_t step[2];
} RowSpan;

/* All rows of a call; `inner` of them per index of the first dim. */
typedef struct {
    uint32_t n, inner;
    int pieces; /* of a row */
} RowSet;

typedef struct {
    uint32_t first, second;
} RowPlace;

/* Place of the row with number `order`. The last row comes first: the preceding op wrote it last,
 * so the last rows of its output are still in L2. */
static __device__ inline RowPlace row_place(const RowSet &r, uint32_t order)
{
    const uint32_t row = r.n - 1 - order;
    if (r.inner == 1) return {row, 0};
    const uint32_t first = row / r.inner;
    return {first, row - first * r.inner};
}

static __device__ inline char *span_at(const RowSpan &s, RowPlace p)
{
    return s.data + (uint64_t)p.first * s.step[0] + (uint64_t)p.second * s.step[1];
}

/* Over the first `dims` dims. */
static inline RowSpan span_of(const Tensor &t, int dims)
{
    RowSpan s = {(char *)t.data, {0, 0}};
    for (int d = 0; d < dims && t.data; d++)
        s.step[d] = (uint32_t)(t.stride[d] * (int64_t)dtype_bytes(t.dtype));
    return s;
}

/* True if the strides fit a RowSpan. */
static inline bool span_reaches(const Tensor &t)
{
    for (int d = 0; d < t.ndim && t.data; d++) {
        const int64_t step = t.stride[d] * (int64_t)dtype_bytes(t.dtype);
        if (step < 0 || step > UINT32_MAX) return false;
    }
    return true;
}

/* True if, in addition, rows are whole pieces. An absent tensor fits. */
static inline bool span_fits(const Tensor &t)
{
    return !t.data || (span_reaches(t) && walk_rows_wide(&t));
}

static inline RowSet row_set_of(const Tensor &x, int64_t rows)
{
    const int64_t inner = x.ndim > 2 ? x.n[1] : 1;
    return {(uint32_t)rows, (uint32_t)inner, (int)(x.n[x.ndim - 1] / WALK_WIDE)};
}

/* Sums over a group of G threads. A block has several groups, each with its own named barrier.
 * `part` must differ from that of the previous call. */
template <int G, int N, int WARPS>
static __device__ inline void sum_of_group(float (&x)[N], float (*part)[N][WARPS])
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
    asm volatile("bar.sync %0, %1;" ::"r"((int)threadIdx.x / G + 1), "n"(G) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = 0;
#pragma unroll
        for (int w = 0; w < G / 32; w++) x[i] += (*part)[i][first + w];
    }
}

/* uint4 per piece. */
static constexpr int fetch_words(DType type) { return type == BF16 ? 1 : 2; }

/* Warps of a block that the registers allow at `heavy` uint4 per thread: two, three or four per
 * quarter of an SM, with two blocks per SM. */
static constexpr int fetch_warps(int heavy) { return heavy <= 2 ? 8 : heavy <= 5 ? 6 : 4; }

/* S stages of N rows, and MORE rows that stay. */
template <int G, int K, DType T, int S, int N, int MORE = 0> struct RowFetch {
    enum { W = WALK_WIDE, WORDS = fetch_words(T), WARPS = fetch_warps(K * WORDS) };
    enum { THREADS = 32 * WARPS, GROUPS = THREADS / G };
    /* Pieces that every thread has, given that fetch_run takes the smallest sufficient group and
     * K. */
    enum { FULL = (G == 32 && T == BF16) || K <= 2 ? K - 1 : K - 2 };
    enum { ROW = K * WORDS * THREADS, BYTES = 16 * (S * N + MORE) * ROW };
    uint4 *stage; /* [S][N][K][WORDS][threads], at this thread; stage S: MORE rows */
    int lane, pieces;

    __device__ RowFetch(uint4 *smem, int of_row)
        : stage(smem + threadIdx.x), lane(threadIdx.x % G), pieces(of_row)
    {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i += THREADS)
            stage[i] = make_uint4(0, 0, 0, 0); /* pieces that are never copied are 0 */
    }
    __device__ bool has(int k) const { return k < FULL || lane + k * G < pieces; }
    /* Byte offset of this thread's k-th piece in a row. */
    __device__ uint32_t piece_offset(int k) const
    {
        return (uint32_t)(lane + k * G) * (16 * WORDS);
    }
    __device__ void fetch(int s, int which, const char *row) const
    {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int word = 0; word < WORDS; word++)
                if (has(k))
                    __pipeline_memcpy_async(stage + (s * N + which) * ROW +
                                                (k * WORDS + word) * THREADS,
                                            row + piece_offset(k) + 16 * word, 16);
    }
    __device__ void floats(int s, int which, int k, float *v) const
    {
        const uint4 *at = stage + (s * N + which) * ROW + k * WORDS * THREADS;
        PackedElements<W> p;
        const uint4 a = at[0];
        p.word[0] = a.x, p.word[1] = a.y, p.word[2] = a.z, p.word[3] = a.w;
        if (WORDS == 2) {
            const uint4 b = at[THREADS];
            p.word[4] = b.x, p.word[5] = b.y, p.word[6] = b.z, p.word[7] = b.w;
        }
        piece_floats(p, T, v);
    }
    __device__ void clear(int s, int which) const
    {
#pragma unroll
        for (int i = 0; i < K * WORDS; i++)
            stage[(s * N + which) * ROW + i * THREADS] = make_uint4(0, 0, 0, 0);
    }
    /* This thread's part of a vector of a row's length; 0 past its end. */
    __device__ void vector(const char *at, float (&v)[K][W]) const
    {
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int e = 0; e < W; e++) v[k][e] = 0;
            if (at && has(k)) piece_floats(piece_load<W>(at + piece_offset(k), T, 0), T, v[k]);
        }
    }
};

/* Runs Launch<G, K, T>::run(work, queue) with the smallest group that holds a row of bf16. */
template <template <int, int, DType> class Launch, class Work>
static Err fetch_bf16(const Work &m, int pieces, const DeviceQueue *q)
{
    if (pieces <= 16) return Launch<16, 1, BF16>::run(m, q);
    switch ((pieces + 31) / 32) {
    case 1:
        return Launch<32, 1, BF16>::run(m, q);
    case 2:
        return Launch<32, 2, BF16>::run(m, q);
    case 3:
        return Launch<32, 3, BF16>::run(m, q);
    case 4:
        return Launch<32, 4, BF16>::run(m, q);
    case 5:
        return Launch<32, 5, BF16>::run(m, q);
    case 6:
        return Launch<32, 6, BF16>::run(m, q);
    case 7:
        return Launch<32, 7, BF16>::run(m, q);
    case 8:
        return Launch<32, 8, BF16>::run(m, q);
    }
    if (pieces <= 64 * 6) return Launch<64, 6, BF16>::run(m, q);
    if (pieces <= 64 * 8) return Launch<64, 8, BF16>::run(m, q);
    if (pieces <= 128 * 6) return Launch<128, 6, BF16>::run(m, q);
    return Launch<128, 8, BF16>::run(m, q);
}

template <template <int, int, DType> class Launch, class Work>
static Err fetch_f32(const Work &m, int pieces, const DeviceQueue *q)
{
    if (pieces <= 16) return Launch<16, 1, F32>::run(m, q);
    if (pieces <= 32) return Launch<32, 1, F32>::run(m, q);
    if (pieces <= 64) return Launch<32, 2, F32>::run(m, q);
    if (pieces <= 128) return Launch<32, 4, F32>::run(m, q);
    if (pieces <= 256) return Launch<64, 4, F32>::run(m, q);
    return Launch<128, 4, F32>::run(m, q);
}

/* Work has a member `rows`. */
template <template <int, int, DType> class Launch, class Work>
static Err fetch_run(const Work &m, DType type, const DeviceQueue *q)
{
    return type == BF16 ? fetch_bf16<Launch>(m, m.rows.pieces, q)
                        : fetch_f32<Launch>(m, m.rows.pieces, q);
}

static inline bool fetch_fits(DType type, int64_t width)
{
    return width / WALK_WIDE <= (type == BF16 ? MAX_FETCH_BF16 : MAX_FETCH_F32);
}

/* Warps of a block if each warp has a row of its own, by the tables above; otherwise 0. */
static inline int fetch_row_warps(DType type, int64_t width)
{
    const int pieces = (int)(width / WALK_WIDE), each = (pieces + 31) / 32;
    if (pieces <= 16 || width > 32 * WALK_WIDE * (type == BF16 ? 8 : 4)) return 0;
    static_assert(MIN_FETCH_WIDTH == 17 * WALK_WIDE && MAX_FETCH_WIDTH == 256 * WALK_WIDE, "");
    return fetch_warps(fetch_words(type) * (type == F32 && each == 3 ? 4 : each));
}

#endif
