/* norm_any.cuh -- layernorm and rmsnorm of rows of any length and strides.
 *
 * A warp or a block has a row. It holds the row in registers as far as they suffice and reads the
 * rest again. Squares that overflow f32 are summed in f64. A norm without a `mean` tensor is an
 * rmsnorm. */
#ifndef DEVICE_CUDA_NORM_ANY_CUH
#define DEVICE_CUDA_NORM_ANY_CUH

#include "device/cuda/norm_rows.cuh"

enum { ANY_WARPS = 4, ANY_LARGE = 256 }; /* warps per block of short rows; threads per long row */

typedef struct {
    Tensor x, w, b, mean, rstd, y; /* b, mean: data NULL if absent */
    int64_t rows, width;
    float eps;
} NormArgs;

/* A row as one thread of the group sees it: pieces lane, lane + G, ... */
template <int G, int W, int K, DType T> struct RowView {
    const void *base;
    int64_t offset, stride;
    int lane;
    int64_t pieces;
    PackedElements<W> kept[K];

    __device__ RowView(const Tensor &t, int64_t row, int thread, int64_t n)
        : base(t.data), offset(row_at(t, t.ndim - 1, row)), stride(t.stride[t.ndim - 1]),
          lane(thread), pieces(n)
    {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (lane + k * G < pieces) kept[k] = load(lane + k * G);
    }
    __device__ PackedElements<W> load(int64_t i) const
    {
        return piece_load<W>(base, T, offset + i * W * (W == 1 ? stride : 1));
    }
    /* The k-th piece of this thread, from `kept` or from memory. */
    template <class Held> __device__ void floats(Held, int k, float *v) const
    {
        if constexpr (Held::YES)
            piece_floats(kept[k], T, v);
        else
            piece_floats(load(lane + (int64_t)k * G), T, v);
    }
};

struct InRegisters {
    enum { YES = 1 };
};
struct InMemory {
    enum { YES = 0 };
};

/* Calls body(held, k, i) for the k-th piece of a thread, piece i of the row. The first K are
 * unrolled, so that `kept` is indexed by constants and stays in registers. */
#define FOR_PIECES(G, row, body)                                                                   \
    _Pragma("unroll") for (int k = 0; k < K; k++)                                                  \
    {                                                                                              \
        const int64_t i = (row).lane + (int64_t)k * (G);                                           \
        if (i < (row).pieces) body(InRegisters(), k, i);                                           \
    }                                                                                              \
    for (int k = K; (row).lane + (int64_t)k * (G) < (row).pieces; k++)                             \
        body(InMemory(), k, (row).lane + (int64_t)k * (G));

/* Sum over the row of (x - mean)^power. */
template <typename S, int G, int W, int K, DType T>
static __device__ inline S row_power(const RowView<G, W, K, T> &x, S mean, int power)
{
    S sum = 0;
    auto body = [&](auto held, int k, int64_t) {
        float v[W];
        x.floats(held, k, v);
#pragma unroll
        for (int e = 0; e < W; e++) {
            const S off = v[e] - mean;
            sum += power == 1 ? (S)v[e] : off * off;
        }
    };
    FOR_PIECES(G, x, body)
    return group_sum<G>(sum);
}

/* Mean and rstd, in f64 if f32 overflows. */
template <int G, int W, int K, DType T>
static __device__ inline void statistics(const NormArgs &m, const RowView<G, W, K, T> &x,
                                         float *mean, float *rstd)
{
    const float width = (float)m.width;
    *mean = m.mean.data ? row_power<float>(x, 0, 1) / width : 0;
    const float square = row_power<float>(x, *mean, 2);
    *rstd = 1 / sqrtf(square / width + m.eps);
    if (square < INFINITY) return; /* the same in all threads of the row */
    const double center = m.mean.data ? row_power<double>(x, 0, 1) / m.width : 0;
    *mean = (float)center;
    *rstd = (float)(1 / sqrt(row_power<double>(x, center, 2) / m.width + (double)m.eps));
}

template <int G, int W>
static __device__ inline PackedElements<W> vector_piece(const Tensor &t, int64_t i)
{
    return piece_load<W>(t.data, t.dtype, i * W * (W == 1 ? t.stride[0] : 1));
}

/* The row of this thread's group, or -1 past the end. */
template <int G> static __device__ inline int64_t group_row(int64_t rows)
{
    const int64_t row = G == 32 ? (int64_t)blockIdx.x * ANY_WARPS + threadIdx.x / 32 : blockIdx.x;
    return row < rows ? row : -1;
}

static __device__ inline void store_statistics(const NormArgs &m, int64_t row, float mean,
                                               float rstd)
{
    if (m.mean.data) ((float *)m.mean.data)[row_at(m.mean, m.mean.ndim, row)] = mean;
    ((float *)m.rstd.data)[row_at(m.rstd, m.rstd.ndim, row)] = rstd;
}

template <int G, int W, int K, DType T>
static __global__ void __launch_bounds__(G == 32 ? 32 * ANY_WARPS : G)
    any_kernel(const __grid_constant__ NormArgs m)
{
    const int64_t row = group_row<G>(m.rows);
    if (row < 0) return;
    const RowView<G, W, K, T> x(m.x, row, threadIdx.x % G, m.width / W);
    float mean, rstd;
    statistics(m, x, &mean, &rstd);
    if (x.lane == 0) store_statistics(m, row, mean, rstd);
    const int64_t out = row_at(m.y, m.y.ndim - 1, row), step = m.y.stride[m.y.ndim - 1];
    auto body = [&](auto held, int k, int64_t i) {
        float v[W], w[W], b[W];
        piece_floats(vector_piece<G, W>(m.w, i), m.w.dtype, w);
        if (m.b.data) piece_floats(vector_piece<G, W>(m.b, i), m.b.dtype, b);
        x.floats(held, k, v);
#pragma unroll
        for (int e = 0; e < W; e++) v[e] = (v[e] - mean) * rstd * w[e] + (m.b.data ? b[e] : 0);
        piece_store<W>(m.y.data, m.y.dtype, out + i * W * (W == 1 ? step : 1), v);
    };
    FOR_PIECES(G, x, body)
}

template <int G, int W, int K> static void any_launch_as(const NormArgs &m, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)(G == 32 ? blocks_of(m.rows, ANY_WARPS) : m.rows);
    const unsigned threads = G == 32 ? 32 * ANY_WARPS : G;
    if (m.x.dtype == BF16)
        any_kernel<G, W, K, BF16><<<blocks, threads, 0, stream>>>(m);
    else
        any_kernel<G, W, K, F32><<<blocks, threads, 0, stream>>>(m);
}

static void any_launch(const NormArgs &m, bool wide, cudaStream_t stream)
{
    if (wide)
        any_launch_as<ANY_LARGE, WALK_WIDE, 4>(m, stream);
    else if (m.width <= 32 * 8)
        any_launch_as<32, 1, 8>(m, stream);
    else
        any_launch_as<ANY_LARGE, 1, 8>(m, stream);
}

#endif
