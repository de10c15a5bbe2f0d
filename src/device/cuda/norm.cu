/* norm.cu -- layernorm and rmsnorm, each row by a group of threads: a warp, a part of one, or several.
 *
 *   h = (x - mean) rstd,  y = h w + b            rmsnorm: mean = 0, no b
 *
 * Rows are fetched ahead (row_fetch.cuh) and swept two or three times in registers; w and b are read
 * again for each row, from L1, which leaves registers for more blocks an SM. Rows that are longer,
 * or not aligned, are held in registers as far as these go, and read again. Squares that overflow
 * f32 are summed in f64. One body for both: a norm without a `mean` tensor is an rmsnorm. */
#include "device/cuda/row_fetch.cuh"

enum { THREADS = FETCH_THREADS, STAGES = 4 };
enum {
    WARPS = 4,
    LARGE = 256
}; /* of other rows: warps of a block of small ones; threads of large */

typedef struct {
    Tensor x, w, b, mean, rstd, y; /* b, mean: data NULL where there is none */
    int64_t rows, width;
    float eps, per_width; /* 1 / width */
} Norm;

/* A row as a thread of the group sees it: pieces lane, lane + G, ... */
template <int G, int W, int K, DType T> struct RowView {
    const void *base;
    int64_t offset, stride;
    int lane;
    int64_t pieces;
    Piece<W> kept[K];

    __device__ RowView(const Tensor &t, int64_t row, int thread, int64_t n)
        : base(t.data), offset(row_at(t, t.ndim - 1, row)), stride(t.stride[t.ndim - 1]),
          lane(thread), pieces(n)
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

static __device__ inline void store_statistics(const Norm &m, int64_t row, float mean, float rstd)
{
    if (m.mean.data) ((float *)m.mean.data)[row_at(m.mean, m.mean.ndim, row)] = mean;
    ((float *)m.rstd.data)[row_at(m.rstd, m.rstd.ndim, row)] = rstd;
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

/* A row whose squares overflow: its numbers in f64, by each thread for itself, since there is no
 * barrier to meet at. */
template <int G> static __device__ __noinline__ void row_alone(const Norm &m, int64_t row)
{
    const int lane = threadIdx.x % G;
    const DType type = m.x.dtype;
    const int64_t at = row_at(m.x, m.x.ndim - 1, row), to = row_at(m.y, m.y.ndim - 1, row);
    double mean = 0, square = 0;
    for (int64_t i = 0; i < m.width && m.mean.data; i++)
        mean += (double)value_get(m.x.data, type, at + i);
    mean /= (double)m.width;
    for (int64_t i = 0; i < m.width; i++) {
        const double off = (double)value_get(m.x.data, type, at + i) - mean;
        square += off * off;
    }
    const float rstd = (float)(1 / sqrt(square / (double)m.width + (double)m.eps));
    if (lane == 0) store_statistics(m, row, (float)mean, rstd);
    for (int64_t i = lane; i < m.width; i += G) {
        const float h = (value_get(m.x.data, type, at + i) - (float)mean) * rstd;
        const float b = m.b.data ? value_get(m.b.data, type, i) : 0;
        value_set(m.y.data, type, to + i, fmaf(h, value_get(m.w.data, type, i), b));
    }
}

/* Sum over a row of what its threads hold, or of the squares. */
template <bool SQUARES, int G, int K>
static __device__ inline float sum_row(const float (&x)[K][WALK_WIDE],
                                       float (*part)[1][THREADS / 32])
{
    float sum[K] = {}, all[1] = {};
#pragma unroll
    for (int e = 0; e < WALK_WIDE; e++)
#pragma unroll
        for (int k = 0; k < K; k++)
            sum[k] = SQUARES ? fmaf(x[k][e], x[k][e], sum[k]) : sum[k] + x[k][e];
#pragma unroll
    for (int k = 0; k < K; k++) all[0] += sum[k];
    sum_of_group<G, 1>(all, part);
    return all[0];
}

/* As registers allow it. */
template <int K, DType T> static constexpr int blocks_an_sm()
{
    return T == F32 ? 2 : K < 4 ? 4 : 3;
}

template <bool LAYER, int G, int K, DType T>
static __global__ void __launch_bounds__(THREADS, blocks_an_sm<K, T>())
    ahead_kernel(const __grid_constant__ Norm m)
{
    enum { W = WALK_WIDE, GROUPS = THREADS / G };
    extern __shared__ uint4 stage[];
    __shared__ float part[2][1][THREADS / 32];
    const RowFetch<G, K, T, STAGES, 1> f = {stage, (int)(threadIdx.x % G), (int)(m.width / W)};
    const int64_t step = (int64_t)gridDim.x * GROUPS;
    const int64_t rounds = (m.rows - blockIdx.x * GROUPS + step - 1) / step; /* of group 0 */
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / G;
    auto fetch = [&](int s, int64_t at) {
        if (at < m.rows) f.fetch(s, 0, m.x, at);
        __pipeline_commit();
    };
    for (int i = 0; i < STAGES; i++) fetch(i, row + i * step);
    for (int64_t round = 0; round < rounds; round++, row += step) {
        const int s = (int)(round % STAGES);
        float x[K][W] = {}, mean = 0; /* past the last row: numbers that nobody stores */
        __pipeline_wait_prior(STAGES - 1);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (f.has(k)) f.floats(s, 0, k, x[k]);
        fetch(s, row + STAGES * step); /* into the place that was just read */
        if (LAYER) {
            mean = sum_row<false, G, K>(x, &part[0]) * m.per_width;
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int e = 0; e < W; e++)
                    if (f.has(k)) x[k][e] -= mean;
        }
        const float square = sum_row<true, G, K>(x, &part[LAYER ? 1 : round % 2]);
        const float rstd = rsqrtf(fmaf(square, m.per_width, m.eps));
        if (row >= m.rows) continue;
        if (!(square < INFINITY)) {
            row_alone<G>(m, row);
            continue;
        }
        if (f.lane == 0) store_statistics(m, row, mean, rstd);
        const int64_t to = row_at(m.y, m.y.ndim - 1, row);
#pragma unroll
        for (int k = 0; k < K; k++) {
            float v[W], add[W] = {};
            if (!f.has(k)) continue;
            piece_floats(piece_load<W>(m.w.data, T, f.column(k)), T, v);
            if (LAYER) piece_floats(piece_load<W>(m.b.data, T, f.column(k)), T, add);
#pragma unroll
            for (int e = 0; e < W; e++) v[e] = fmaf(x[k][e] * rstd, v[e], add[e]);
            piece_store<W>(m.y.data, T, to + f.column(k), v);
        }
    }
}

template <bool LAYER> struct Ahead {
    template <int G, int K, DType T> struct Launch {
        static Err run(const Norm &m, cudaStream_t stream)
        {
            const int bytes = RowFetch<G, K, T, STAGES, 1>::BYTES;
            const int64_t most = 132 * blocks_an_sm<K, T>();
            const unsigned blocks = (unsigned)(m.rows < most ? m.rows : most);
            CUDA_TRY(cudaFuncSetAttribute(ahead_kernel<LAYER, G, K, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
            ahead_kernel<LAYER, G, K, T><<<blocks, THREADS, bytes, stream>>>(m);
            return OK;
        }
    };
};

template <int G, int W, int K> static void launch_as(const Norm &m, cudaStream_t stream)
{
    const unsigned blocks = (unsigned)(G == 32 ? blocks_of(m.rows, WARPS) : m.rows);
    const unsigned threads = G == 32 ? 32 * WARPS : G;
    if (m.x.dtype == BF16)
        norm_kernel<G, W, K, BF16><<<blocks, threads, 0, stream>>>(m);
    else
        norm_kernel<G, W, K, F32><<<blocks, threads, 0, stream>>>(m);
}

static Err launch(const Call *call, KernelId id, Norm m)
{
    const cudaStream_t stream = call->queue->stream;
    TRY(rows_of(m.x, &m.rows));
    m.width = m.x.n[m.x.ndim - 1];
    if (m.rows == 0 || m.width == 0) return OK;
    m.per_width = 1 / (float)m.width;
    bool wide = walk_rows_wide(&m.x) && walk_rows_wide(&m.y) && walk_rows_wide(&m.w);
    if (m.b.data) wide = wide && walk_rows_wide(&m.b);
    if (wide && m.width <= fetch_most(m.x.dtype))
        TRY(m.mean.data ? fetch_run<Ahead<true>::Launch>(m, m.x.dtype, m.width, stream)
                        : fetch_run<Ahead<false>::Launch>(m, m.x.dtype, m.width, stream));
    else if (wide)
        launch_as<LARGE, WALK_WIDE, 4>(m, stream);
    else if (m.width <= 32 * 8)
        launch_as<32, 1, 8>(m, stream);
    else
        launch_as<LARGE, 1, 8>(m, stream);
    return cuda_launched(id);
}

extern "C" Err cuda_layernorm(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_layernorm));
    m.x = call->in[0], m.w = call->in[1], m.b = call->in[2];
    m.y = call->out[0], m.mean = call->out[1], m.rstd = call->out[2];
    m.eps = (float)call->attr.norm.eps;
    return launch(call, KERNEL_layernorm, m);
}

extern "C" Err cuda_rmsnorm(const Call *call)
{
    Norm m = {};
    TRY(cuda_begin(call, KERNEL_rmsnorm));
    m.x = call->in[0], m.w = call->in[1];
    m.y = call->out[0], m.rstd = call->out[1];
    m.eps = (float)call->attr.norm.eps;
    return launch(call, KERNEL_rmsnorm, m);
}
