/* norm_back.cu -- gradients of layernorm and rmsnorm, in one pass over dy and x.
 *
 *   h = (x - mean) rstd,  g = dy w,  dx = onto + rstd (g - avg(g) - h avg(g h))
 *   dw = sum over rows of dy h,  db = sum over rows of dy         rmsnorm: without avg(g), db
 *
 * Rows are fetched ahead (row_fetch.cuh). Sums of a thread's columns stay in registers over all its
 * rows; the groups of a block are folded in shared memory, blocks in scratch (column_fold.cuh): all
 * in one order, by shape alone. Rows that are longer, or not aligned, take a kernel of their own
 * (norm_back_any.cuh). Either makes dx, dw or both, by one body, so that each has the same bits
 * whichever else is made. LAYER: a layernorm, which has a mean and a db. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/norm_back_any.cuh"
#include "device/cuda/row_fetch.cuh"

enum { STAGES = 2 };

enum { DY, X, ONTO, FETCHED };

typedef struct {
    RowSpan dy, x, onto, dx, mean, rstd; /* mean, onto, dx: data NULL where there is none */
    const char *w;                       /* for dx */
    Rows rows;
    float per_width; /* 1 / width */
    float *part;     /* [blocks, sums, width]; NULL: dx alone */
    int sums, blocks;
} Back;

/* The groups' sums, folded in their order, to the block's row of scratch. */
template <class Fetch, int G, int K>
static __device__ inline void store_sums(const Back &m, int which, float *fold,
                                         const float (&sum)[K][WALK_WIDE])
{
    enum { W = WALK_WIDE, ALL = K * W * G }; /* columns of a group: [k][e][lane] */
    const int group = threadIdx.x / G, lane = threadIdx.x % G;
    const int width = m.rows.pieces * W;
    __syncthreads(); /* what was there has been read */
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < W; e++) fold[group * ALL + (k * W + e) * G + lane] = sum[k][e];
    __syncthreads();
    for (int i = threadIdx.x; i < ALL; i += Fetch::THREADS) {
        const int column = (i / (W * G) * G + i % G) * W + i / G % W;
        float all = 0;
#pragma unroll
        for (int other = 0; other < Fetch::GROUPS; other++) all += fold[other * ALL + i];
        if (column < width) m.part[((int64_t)blockIdx.x * m.sums + which) * width + column] = all;
    }
}

/* What a row's elements share. dx = rstd g + slope x + level + onto. */
typedef struct {
    float rstd, shift; /* h = rstd x + shift */
    float slope, level;
} RowLine;

/* The second half of it, from the row's averages of g h and of g. */
template <bool LAYER> static __device__ inline void line_end(RowLine &r, float avg_gh, float avg_g)
{
    const float of_h = -__fmul_rn(r.rstd, avg_gh), of_1 = LAYER ? -__fmul_rn(r.rstd, avg_g) : 0;
    r.slope = __fmul_rn(of_h, r.rstd);
    r.level = fmaf(of_h, r.shift, of_1);
}

template <bool LAYER> static __device__ inline float h_of(const RowLine &r, float x)
{
    return LAYER ? fmaf(x, r.rstd, r.shift) : __fmul_rn(x, r.rstd);
}

template <bool LAYER>
static __device__ inline float dx_of(const RowLine &r, float g, float x, float onto)
{
    return fmaf(g, r.rstd, fmaf(x, r.slope, LAYER ? onto + r.level : onto));
}

/* A row's dx, from what stage s has of it. */
template <bool LAYER, DType T, class Fetch, int K>
static __device__ inline void write_dx(const Fetch &f, int s, const RowLine &r,
                                       const float (&w)[K][WALK_WIDE], char *dx)
{
    enum { W = WALK_WIDE };
#pragma unroll
    for (int k = 0; k < K; k++) {
        float dy[W], x[W], onto[W];
        f.floats(s, DY, k, dy);
        f.floats(s, X, k, x);
        f.floats(s, ONTO, k, onto);
#pragma unroll
        for (int e = 0; e < W; e++)
            x[e] = dx_of<LAYER>(r, __fmul_rn(dy[e], w[k][e]), x[e], onto[e]);
        if (f.has(k)) piece_store<W>(dx + f.apart(k), T, 0, x);
    }
}

template <bool LAYER, int G, int K, DType T>
static __global__ void __launch_bounds__(RowFetch<G, K, T, STAGES, FETCHED>::THREADS, 2)
    back_kernel(const __grid_constant__ Back m)
{
    typedef RowFetch<G, K, T, STAGES, FETCHED> Fetch;
    enum { W = WALK_WIDE, SUMS = LAYER ? 2 : 1 }; /* of g h, of g */
    extern __shared__ uint4 stage[];
    __shared__ float part[2][SUMS][Fetch::WARPS];
    const Fetch f(stage, m.rows.pieces);
    const uint32_t step = gridDim.x * Fetch::GROUPS, mine = threadIdx.x / G;
    const uint32_t start = blockIdx.x * Fetch::GROUPS + mine,
                   besides = G < 32 ? mine % (32 / G) : 0;
    float w[K][W], dw[K][W] = {}, db[K][W] = {}, mean = 0, rstd = 0;
    auto fetch = [&](int s, uint32_t row) {
        if (row < m.rows.n) {
            const RowPlace at = row_place(m.rows, row);
            f.fetch(s, DY, span_at(m.dy, at));
            f.fetch(s, X, span_at(m.x, at));
            if (m.onto.data) f.fetch(s, ONTO, span_at(m.onto, at));
            if (LAYER) mean = *(const float *)span_at(m.mean, at);
            rstd = *(const float *)span_at(m.rstd, at);
        }
        __pipeline_commit();
    };
    early_next();
    early_wait();
    fetch(0, start);
    f.vector(m.w, w);
    int s = 0;
    /* The groups of a warp go on together, until the first of them is done. */
    for (uint32_t row = start; row - besides < m.rows.n; row += step, s ^= 1) {
        RowLine r = {rstd, LAYER ? -__fmul_rn(mean, rstd) : 0, 0, 0};
        float sum[SUMS] = {};
        fetch(s ^ 1, row + step);
        __pipeline_wait_prior(1);
        if (G < 32 && row >= m.rows.n) r = {}, f.clear(s, DY);
#pragma unroll
        for (int k = 0; k < K; k++) {
            float dy[W], x[W];
            f.floats(s, DY, k, dy);
            f.floats(s, X, k, x);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const float g = __fmul_rn(dy[e], w[k][e]), h = h_of<LAYER>(r, x[e]);
                sum[0] = fmaf(g, h, sum[0]);
                if (LAYER) sum[SUMS - 1] += g;
                dw[k][e] = fmaf(dy[e], h, dw[k][e]);
                if (LAYER) db[k][e] += dy[e];
            }
        }
        if (!m.dx.data) continue;
        sum_of_group<G, SUMS, Fetch::WARPS>(sum, &part[s]);
        if (G < 32 && row >= m.rows.n) continue;
        line_end<LAYER>(r, sum[0] * m.per_width, sum[SUMS - 1] * m.per_width);
        char *dx = span_at(m.dx, row_place(m.rows, row));
        if (K > 3) __syncwarp(); /* makes the compiler read again what it has no registers for */
        write_dx<LAYER, T>(f, s, r, w, dx);
    }
    if (!m.part) return;
    __pipeline_wait_prior(0); /* an empty one of each thread may be left */
    store_sums<Fetch, G, K>(m, 0, (float *)stage, dw);
    if (LAYER) store_sums<Fetch, G, K>(m, 1, (float *)stage, db);
}

template <bool LAYER> struct Launches {
    template <int G, int K, DType T> struct Launch {
        static Err run(const Back &m, const DeviceQueue *q)
        {
            typedef RowFetch<G, K, T, STAGES, FETCHED> Fetch;
            static_assert(Fetch::BYTES >= 4 * WALK_WIDE * K * Fetch::THREADS, "sums fit");
            CUDA_TRY(cudaFuncSetAttribute(back_kernel<LAYER, G, K, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          Fetch::BYTES));
            const LaunchShape shape = {dim3((unsigned)m.blocks), dim3(Fetch::THREADS),
                                       Fetch::BYTES};
            return early_launch(back_kernel<LAYER, G, K, T>, shape, q, m);
        }
    };
};

static bool is_wide(const NormBack &m)
{
    return span_fits(m.dy) && span_fits(m.x) && span_fits(m.onto) && span_fits(m.w) &&
           span_fits(m.dx) && span_reaches(m.mean) && span_reaches(m.rstd);
}

static Err ahead_launch(const NormBack &m, const DeviceQueue *q)
{
    const int dims = m.x.ndim - 1;
    const Back b = {span_of(m.dy, dims),
                    span_of(m.x, dims),
                    span_of(m.onto, dims),
                    span_of(m.dx, dims),
                    span_of(m.mean, dims),
                    span_of(m.rstd, dims),
                    (const char *)m.w.data,
                    rows_as(m.x, m.rows),
                    m.per_width,
                    m.part,
                    m.sums,
                    m.blocks};
    return m.mean.data ? fetch_run<Launches<true>::Launch>(b, m.x.dtype, q)
                       : fetch_run<Launches<false>::Launch>(b, m.x.dtype, q);
}

static Err launch(const Call *call, KernelId id, NormBack m)
{
    const cudaStream_t stream = call->queue->stream;
    void *scratch;
    const bool wide = is_wide(m);
    m.blocks = (int)(m.rows < FETCH_BLOCKS ? m.rows : FETCH_BLOCKS);
    m.sums = m.db.data ? 2 : 1;
    if (m.dw.data) {
        TRY(cuda_scratch(call->queue, sizeof(float) * (size_t)(m.sums * m.blocks * m.width) + 1,
                         &scratch));
        m.part = (float *)scratch;
    }
    if (m.blocks > 0 && wide && fetch_fits(m.x.dtype, m.width))
        TRY(ahead_launch(m, call->queue));
    else if (m.blocks > 0 && wide)
        any_kernel<WALK_WIDE><<<(unsigned)m.blocks, ANY_THREADS, 0, stream>>>(m);
    else if (m.blocks > 0)
        any_kernel<1><<<(unsigned)m.blocks, ANY_THREADS, 0, stream>>>(m);
    if (m.dw.data)
        TRY(column_fold({m.part, m.blocks, m.sums, m.width, {m.dw, m.db}, {m.keep_dw, m.keep_db}},
                        call->queue));
    return cuda_launched(id);
}

/* In one pass where that is one for dw alone too: else dw, then dx, which may lie over dy. */
static Err norm_back(const Call *call, KernelId id, NormBack m)
{
    TRY(cuda_begin(call, id));
    TRY(rows_of(m.x, &m.rows));
    m.width = m.x.n[m.x.ndim - 1];
    if (m.width == 0) return OK;
    m.per_width = 1 / (float)m.width;
    MUST(m.dy.dtype == m.x.dtype, "dy of another type than x");
    if (!m.dx.data || !m.dw.data || is_wide(m)) return launch(call, id, m);
    NormBack dw = m, dx = m;
    dw.dx.data = dw.onto.data = dw.w.data = NULL; /* as where dw alone is asked for */
    dx.dw.data = dx.db.data = NULL;
    TRY(launch(call, id, dw));
    return launch(call, id, dx);
}

static NormBack of_dx(const Call *call, bool layer)
{
    NormBack m = {};
    const int rstd = layer ? 4 : 3;
    m.dy = call->in[0], m.x = call->in[1], m.w = call->in[2], m.rstd = call->in[rstd];
    if (layer) m.mean = call->in[3];
    if (call->n_in > rstd + 1) m.onto = call->in[rstd + 1];
    m.dx = call->out[0];
    return m;
}

static NormBack of_dw(const Call *call, bool layer)
{
    NormBack m = {};
    m.dy = call->in[0], m.x = call->in[1], m.rstd = call->in[layer ? 3 : 2];
    if (layer) m.mean = call->in[2], m.db = call->out[1];
    m.dw = call->out[0];
    m.keep_dw = (float)call->number[0], m.keep_db = (float)call->number[1];
    return m;
}

static NormBack of_both(const Call *call, bool layer)
{
    NormBack m = of_dx(call, layer);
    m.dw = call->out[1];
    if (layer) m.db = call->out[2];
    m.keep_dw = (float)call->number[1], m.keep_db = (float)call->number[2];
    return m;
}

extern "C" Err cuda_layernorm_dx(const Call *call)
{
    return norm_back(call, KERNEL_layernorm_dx, of_dx(call, true));
}

extern "C" Err cuda_layernorm_dw(const Call *call)
{
    return norm_back(call, KERNEL_layernorm_dw, of_dw(call, true));
}

extern "C" Err cuda_layernorm_back(const Call *call)
{
    if (call->n_out > 3) { /* before dx, which may lie over onto */
        const Call sum = call_sum_rows(call, &call->in[5], 3);
        TRY(cuda_sum_rows(&sum));
    }
    return norm_back(call, KERNEL_layernorm_back, of_both(call, true));
}

extern "C" Err cuda_rmsnorm_dx(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_dx, of_dx(call, false));
}

extern "C" Err cuda_rmsnorm_dw(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_dw, of_dw(call, false));
}

extern "C" Err cuda_rmsnorm_back(const Call *call)
{
    return norm_back(call, KERNEL_rmsnorm_back, of_both(call, false));
}
