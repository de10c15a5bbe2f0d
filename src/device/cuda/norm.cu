/* norm.cu -- layernorm and rmsnorm.
 *
 *   h = (x - mean) rstd,  y = h w + b            rmsnorm: mean = 0, no b
 *
 * Rows are prefetched (row_fetch.cuh) and swept two or three times in registers. Rows that are
 * longer or not aligned use another kernel (norm_any.cuh). LAYER: a layernorm. */
#include "device/cuda/norm_any.cuh"
#include "device/cuda/row_fetch.cuh"

enum { STAGES = 4 };

typedef struct {
    RowSpan x, y, mean, rstd;
    const char *w, *b;
    RowSet rows;
    float eps, per_width; /* per_width: 1 / width */
} NormPrefetchArgs;

template <bool LAYER>
static __device__ inline void store_numbers(const NormPrefetchArgs &m, RowPlace at, float mean,
                                            float rstd)
{
    if (LAYER) *(float *)span_at(m.mean, at) = mean;
    *(float *)span_at(m.rstd, at) = rstd;
}

/* A row whose squares overflow f32: every thread computes its statistics in f64. */
template <bool LAYER, int G, DType T>
static __device__ __noinline__ void row_in_f64(const NormPrefetchArgs &m, uint32_t row)
{
    const RowPlace at = row_place(m.rows, row);
    const char *from = span_at(m.x, at);
    const int width = m.rows.pieces * WALK_WIDE;
    double mean = 0, square = 0;
    for (int i = 0; i < width && LAYER; i++) mean += (double)value_get(from, T, i);
    mean /= width;
    for (int i = 0; i < width; i++) {
        const double off = (double)value_get(from, T, i) - mean;
        square += off * off;
    }
    const float rstd = (float)(1 / sqrt(square / width + (double)m.eps));
    for (int i = threadIdx.x % G; i < width; i += G) {
        const float h = (value_get(from, T, i) - (float)mean) * rstd;
        const float b = LAYER ? value_get(m.b, T, i) : 0;
        value_set(span_at(m.y, at), T, i, fmaf(h, value_get(m.w, T, i), b));
    }
    if (threadIdx.x % G == 0) store_numbers<LAYER>(m, at, (float)mean, rstd);
}

/* Recomputes the block's rows that overflowed. They are marked by an rstd of 0, which all threads
 * read before one of them overwrites it. */
template <bool LAYER, int G, DType T>
static __device__ inline void redo_overflowed(const NormPrefetchArgs &m, uint32_t start,
                                              uint32_t step)
{
    const uint32_t mine = threadIdx.x / G;
    for (uint32_t row = start + mine; row - mine < m.rows.n; row += step) {
        const bool overflowed =
            row < m.rows.n && *(const volatile float *)span_at(m.rstd, row_place(m.rows, row)) == 0;
        __syncthreads();
        if (overflowed) row_in_f64<LAYER, G, T>(m, row);
    }
}

/* Sum over a row of its elements, or of their squares. */
template <bool SQUARES, int G, int K, int WARPS>
static __device__ inline float sum_row(const float (&x)[K][WALK_WIDE], float (*part)[1][WARPS])
{
    float sum[K] = {}, all[1] = {};
#pragma unroll
    for (int e = 0; e < WALK_WIDE; e++)
#pragma unroll
        for (int k = 0; k < K; k++)
            sum[k] = SQUARES ? fmaf(x[k][e], x[k][e], sum[k]) : sum[k] + x[k][e];
#pragma unroll
    for (int k = 0; k < K; k++) all[0] += sum[k];
    sum_of_group<G, 1, WARPS>(all, part);
    return all[0];
}

template <bool LAYER, int G, int K, DType T>
static __global__ void __launch_bounds__(RowFetch<G, K, T, STAGES, 1>::THREADS, 2)
    prefetch_kernel(const __grid_constant__ NormPrefetchArgs m)
{
    typedef RowFetch<G, K, T, STAGES, 1> Fetch;
    enum { W = WALK_WIDE };
    extern __shared__ uint4 stage[];
    __shared__ float part[2][1][Fetch::WARPS];
    const Fetch f(stage, m.rows.pieces);
    pdl_wait();
    const uint32_t step = gridDim.x * Fetch::GROUPS, start = blockIdx.x * Fetch::GROUPS;
    const uint32_t mine = threadIdx.x / G, group_in_warp = G < 32 ? mine % (32 / G) : 0;
    auto fetch = [&](int s, uint32_t row) {
        if (row < m.rows.n) f.fetch(s, 0, span_at(m.x, row_place(m.rows, row)));
        __pipeline_commit();
    };
    for (int i = 0; i < STAGES; i++) fetch(i, start + mine + i * step);
    float w[K][W], b[K][W];
    f.vector(m.w, w);
    if (LAYER) f.vector(m.b, b);
    bool overflows = false;
    int s = 0;
    /* The groups of a warp continue together until the first of them is done. */
    for (uint32_t row = start + mine; row - group_in_warp < m.rows.n; row += step) {
        float x[K][W], mean = 0;
        __pipeline_wait_prior(STAGES - 1);
#pragma unroll
        for (int k = 0; k < K; k++) f.floats(s, 0, k, x[k]);
        fetch(s, row + STAGES * step); /* into the stage that was just read */
        s = (s + 1) % STAGES;
        if (LAYER) {
            mean = sum_row<false, G, K>(x, &part[0]) * m.per_width;
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int e = 0; e < W; e++) x[k][e] = f.has(k) ? x[k][e] - mean : 0;
        }
        const float square = sum_row<true, G, K>(x, &part[LAYER ? 1 : s % 2]);
        const bool fits = square < INFINITY;
        const float rstd = fits ? rsqrtf(fmaf(square, m.per_width, m.eps)) : 0;
        if (G < 32 && row >= m.rows.n) continue;
        const RowPlace at = row_place(m.rows, row);
        if (f.lane == 0) store_numbers<LAYER>(m, at, mean, rstd);
        if (!fits) {
            overflows = true;
            continue;
        }
        char *y = span_at(m.y, at);
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int e = 0; e < W; e++)
                x[k][e] = LAYER ? fmaf(x[k][e] * rstd, w[k][e], b[k][e]) : x[k][e] * rstd * w[k][e];
            if (f.has(k)) piece_store<W>(y + f.piece_offset(k), T, 0, x[k]);
        }
    }
    if (__syncthreads_or(overflows)) redo_overflowed<LAYER, G, T>(m, start, step);
}

template <bool LAYER> struct NormLaunches {
    template <int G, int K, DType T> struct NormLaunch {
        static Err run(const NormPrefetchArgs &m, const DeviceQueue *q)
        {
            typedef RowFetch<G, K, T, STAGES, 1> Fetch;
            const int64_t blocks = blocks_of(m.rows.n, Fetch::GROUPS);
            CUDA_TRY(cudaFuncSetAttribute(prefetch_kernel<LAYER, G, K, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          Fetch::BYTES));
            const unsigned grid = (unsigned)(blocks < FETCH_BLOCKS ? blocks : FETCH_BLOCKS);
            const LaunchShape shape = {dim3(grid), dim3(Fetch::THREADS), Fetch::BYTES};
            return pdl_launch(prefetch_kernel<LAYER, G, K, T>, shape, q, m);
        }
    };
};

static Err prefetch_launch(const NormArgs &m, const DeviceQueue *q)
{
    const int dims = m.x.ndim - 1;
    const NormPrefetchArgs a = {span_of(m.x, dims),      span_of(m.y, dims),
                                span_of(m.mean, dims),   span_of(m.rstd, dims),
                                (const char *)m.w.data,  (const char *)m.b.data,
                                row_set_of(m.x, m.rows), m.eps,
                                1 / (float)m.width};
    return m.mean.data ? fetch_run<NormLaunches<true>::NormLaunch>(a, m.x.dtype, q)
                       : fetch_run<NormLaunches<false>::NormLaunch>(a, m.x.dtype, q);
}

static Err launch(const Call *call, KernelId id, NormArgs m)
{
    TRY(rows_of(m.x, &m.rows));
    m.width = m.x.n[m.x.ndim - 1];
    if (m.rows == 0 || m.width == 0) return OK;
    const bool wide = span_fits(m.x) && span_fits(m.y) && span_fits(m.w) && span_fits(m.b);
    const bool reachable = span_reaches(m.mean) && span_reaches(m.rstd);
    if (wide && reachable && fetch_fits(m.x.dtype, m.width))
        TRY(prefetch_launch(m, call->queue));
    else
        any_launch(m, wide, call->queue->stream);
    return cuda_launched(id);
}

extern "C" Err cuda_layernorm(const Call *call)
{
    NormArgs m = {};
    TRY(cuda_begin(call, KERNEL_layernorm));
    m.x = call->in[0], m.w = call->in[1], m.b = call->in[2];
    m.y = call->out[0], m.mean = call->out[1], m.rstd = call->out[2];
    m.eps = (float)call->attr.norm.eps;
    return launch(call, KERNEL_layernorm, m);
}

extern "C" Err cuda_rmsnorm(const Call *call)
{
    NormArgs m = {};
    TRY(cuda_begin(call, KERNEL_rmsnorm));
    m.x = call->in[0], m.w = call->in[1];
    m.y = call->out[0], m.rstd = call->out[1];
    m.eps = (float)call->attr.norm.eps;
    return launch(call, KERNEL_rmsnorm, m);
}
