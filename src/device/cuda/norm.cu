/* norm.cu -- layernorm and rmsnorm, each row by a group of threads: a warp, or a block.
 *
 *   h = (x - mean) rstd,  y = h w + b            rmsnorm: mean = 0, no b
 *   g = dy w,  dx = rstd (g - avg(g) - h avg(g h))         rmsnorm: without avg(g)
 *
 * A row is loaded once and held in registers, K pieces a thread, while it is swept two or three
 * times; rows that are longer are read again for what does not fit. Squares that overflow f32 are
 * summed in f64. One body for both: a norm without a `mean` tensor is an rmsnorm. */
#include "device/cuda/value.cuh"

enum { WARPS = 4, LARGE = 256 }; /* warps of a block of small rows; threads of large */

typedef struct {
    Tensor dy, x, w, b, mean, rstd; /* dy, b, mean: data NULL where there is none */
    Tensor y;                       /* or dx */
    int64_t rows, width;
    float eps;
} Norm;

/* Offset of a row over all dims but the last: there are one or two. */
static __device__ inline int64_t row_offset(const Tensor &t, int64_t row)
{
    if (t.ndim <= 2) return row * t.stride[0];
    return row / t.n[1] * t.stride[0] + row % t.n[1] * t.stride[1];
}

static __device__ inline int64_t stat_offset(const Tensor &t, int64_t row)
{
    if (t.ndim <= 1) return row * t.stride[0];
    return row / t.n[1] * t.stride[0] + row % t.n[1] * t.stride[1];
}

/* A row as a thread of the group sees it: pieces lane, lane + G, ... */
template <int G, int W, int K, DType T> struct RowView {
    const void *base;
    int64_t offset, stride;
    int lane;
    int64_t pieces;
    Piece<W> kept[K];

    __device__ RowView(const Tensor &t, int64_t row, int thread, int64_t n)
        : base(t.data), offset(row_offset(t, row)), stride(t.stride[t.ndim - 1]), lane(thread),
          pieces(n)
    {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (lane + k * G < pieces) kept[k] = load(lane + k * G);
    }
    __device__ Piece<W> load(int64_t i) const
    {
        return piece_load<W>(base, T, offset + i * W * (W == 1 ? stride : 1));
    }
    /* The k-th piece of this thread, which is held in `kept` or read again. */
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

/* The pieces of a thread: body(held, k, i) for its k-th, which is piece i of the row. The first ones are
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

/* Mean and rstd; in f64 where f32 overflows. */
template <int G, int W, int K, DType T>
static __device__ inline void statistics(const Norm &m, const RowView<G, W, K, T> &x, float *mean,
                                         float *rstd)
{
    const float width = (float)m.width;
    *mean = m.mean.data ? row_power<float>(x, 0, 1) / width : 0;
    const float square = row_power<float>(x, *mean, 2);
    *rstd = 1 / sqrtf(square / width + m.eps);
    if (square < INFINITY) return; /* the same for all threads of the row */
    const double center = m.mean.data ? row_power<double>(x, 0, 1) / m.width : 0;
    *mean = (float)center;
    *rstd = (float)(1 / sqrt(row_power<double>(x, center, 2) / m.width + (double)m.eps));
}

template <int G, int W> static __device__ inline Piece<W> vector_piece(const Tensor &t, int64_t i)
{
    return piece_load<W>(t.data, t.dtype, i * W * (W == 1 ? t.stride[0] : 1));
}

/* Row of this thread's group, or -1 past the end. */
template <int G> static __device__ inline int64_t group_row(int64_t rows)
{
    const int64_t row = G == 32 ? (int64_t)blockIdx.x * WARPS + threadIdx.x / 32 : blockIdx.x;
    return row < rows ? row : -1;
}

template <int G, int W, int K, DType T>
static __global__ void __launch_bounds__(G == 32 ? 32 * WARPS : G)
    norm_kernel(const __grid_constant__ Norm m)
{
    const int64_t row = group_row<G>(m.rows);
    if (row < 0) return;
    const RowView<G, W, K, T> x(m.x, row, threadIdx.x % G, m.width / W);
    float mean, rstd;
    statistics(m, x, &mean, &rstd);
    if (x.lane == 0) {
        if (m.mean.data) ((float *)m.mean.data)[stat_offset(m.mean, row)] = mean;
        ((float *)m.rstd.data)[stat_offset(m.rstd, row)] = rstd;
    }
    const int64_t out = row_offset(m.y, row), step = m.y.stride[m.y.ndim - 1];
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

template <int G, int W, int K, DType T>
static __global__ void __launch_bounds__(G == 32 ? 32 * WARPS : G)
    norm_dx_kernel(const __grid_constant__ Norm m)
{
    const int64_t row = group_row<G>(m.rows);
    if (row < 0) return;
    const RowView<G, W, K, T> x(m.x, row, threadIdx.x % G, m.width / W);
    const RowView<G, W, K, T> dy(m.dy, row, threadIdx.x % G, m.width / W);
    const float rstd = ((const float *)m.rstd.data)[stat_offset(m.rstd, row)];
    const float mean = m.mean.data ? ((const float *)m.mean.data)[stat_offset(m.mean, row)] : 0;
    /* g and h of a piece. */
    auto gh = [&](auto held, int k, int64_t i, float *g, float *h) {
        float w[W];
        piece_floats(vector_piece<G, W>(m.w, i), m.w.dtype, w);
        dy.floats(held, k, g);
        x.floats(held, k, h);
#pragma unroll
        for (int e = 0; e < W; e++) g[e] *= w[e], h[e] = (h[e] - mean) * rstd;
    };
    float sum_g = 0, sum_gh = 0;
    auto sums = [&](auto held, int k, int64_t i) {
        float g[W], h[W];
        gh(held, k, i, g, h);
#pragma unroll
        for (int e = 0; e < W; e++) sum_g += g[e], sum_gh += g[e] * h[e];
    };
    FOR_PIECES(G, x, sums)
    const float avg_gh = group_sum<G>(sum_gh) / (float)m.width;
    const float avg_g = m.mean.data ? group_sum<G>(sum_g) / (float)m.width : 0;
    const int64_t out = row_offset(m.y, row), step = m.y.stride[m.y.ndim - 1];
    auto store = [&](auto held, int k, int64_t i) {
        float g[W], h[W];
        gh(held, k, i, g, h);
#pragma unroll
        for (int e = 0; e < W; e++) g[e] = rstd * (g[e] - avg_g - h[e] * avg_gh);
        piece_store<W>(m.y.data, m.y.dtype, out + i * W * (W == 1 ? step : 1), g);
    };
    FOR_PIECES(G, x, store)
}

template <bool DX, int G, int W, int K> static void launch_as(const Norm &m, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)(G == 32 ? blocks_of(m.rows, WARPS) : m.rows);
    const unsigned threads = G == 32 ? 32 * WARPS : G;
    if (DX && m.x.dtype == BF16)
        norm_dx_kernel<G, W, K, BF16><<<blocks, threads, 0, stream>>>(m);
    else if (DX)
        norm_dx_kernel<G, W, K, F32><<<blocks, threads, 0, stream>>>(m);
    else if (m.x.dtype == BF16)
        norm_kernel<G, W, K, BF16><<<blocks, threads, 0, stream>>>(m);
    else
        norm_kernel<G, W, K, F32><<<blocks, threads, 0, stream>>>(m);
}

/* A warp holds rows up to 32 K pieces; longer ones get a block each. */
template <bool DX> static Err launch(const Call *call, KernelId id, Norm m)
{
    const cudaStream_t stream = call->queue->stream;
    m.rows = 1;
    m.width = m.x.n[m.x.ndim - 1];
    for (int d = 0; d < m.x.ndim - 1; d++) m.rows *= m.x.n[d];
    if (m.rows == 0 || m.width == 0) return OK;
    MUST(!DX || m.dy.dtype == m.x.dtype, "dy of another type than x");
    bool wide = walk_rows_wide(&m.x) && walk_rows_wide(&m.y) && walk_rows_wide(&m.w);
    if (DX) wide = wide && walk_rows_wide(&m.dy);
    if (m.b.data) wide = wide && walk_rows_wide(&m.b);
    if (wide && m.width <= 32 * WALK_WIDE * 4)
        launch_as<DX, 32, WALK_WIDE, 4>(m, stream);
    else if (wide && m.width <= 32 * WALK_WIDE * 8)
        launch_as<DX, 32, WALK_WIDE, 8>(m, stream);
    else if (wide)
        launch_as<DX, LARGE, WALK_WIDE, 4>(m, stream);
    else if (m.width <= 32 * 8)
        launch_as<DX, 32, 1, 8>(m, stream);
    else
        launch_as<DX, LARGE, 1, 8>(m, stream);
    return cuda_launched(id);
}

extern "C" Err cuda_layernorm(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_layernorm));
    m.x = call->in[0], m.w = call->in[1], m.b = call->in[2];
    m.y = call->out[0], m.mean = call->out[1], m.rstd = call->out[2];
    m.eps = (float)call->attr.norm.eps;
    return launch<false>(call, KERNEL_layernorm, m);
}

extern "C" Err cuda_rmsnorm(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_rmsnorm));
    m.x = call->in[0], m.w = call->in[1];
    m.y = call->out[0], m.rstd = call->out[1];
    m.eps = (float)call->attr.norm.eps;
    return launch<false>(call, KERNEL_rmsnorm, m);
}

extern "C" Err cuda_layernorm_dx(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_layernorm_dx));
    m.dy = call->in[0], m.x = call->in[1], m.w = call->in[2];
    m.mean = call->in[3], m.rstd = call->in[4], m.y = call->out[0];
    return launch<true>(call, KERNEL_layernorm_dx, m);
}

extern "C" Err cuda_rmsnorm_dx(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_rmsnorm_dx));
    m.dy = call->in[0], m.x = call->in[1], m.w = call->in[2];
    m.rstd = call->in[3], m.y = call->out[0];
    return launch<true>(call, KERNEL_rmsnorm_dx, m);
}
