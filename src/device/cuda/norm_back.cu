/* norm_back.cu -- gradients of layernorm and rmsnorm, in one pass over dy and x.
 *
 *   h = (x - mean) rstd,  g = dy w,  dx = onto + rstd (g - avg(g) - h avg(g h))
 *   dw = sum over rows of dy h,  db = sum over rows of dy         rmsnorm: without avg(g), db
 *
 * Rows are fetched ahead (row_fetch.cuh). Sums of a thread's columns stay in registers over all its
 * rows; the groups of a block are folded in shared memory, blocks in scratch (column_fold.cuh): all
 * in one order, by shape alone. Rows that are longer, or not aligned, take a kernel that reads them
 * twice. Either makes dx, dw or both, by one body, so that each has the same bits whichever else is
 * made. LAYER: a layernorm, which has a mean and a db. */
#include "device/cuda/column_fold.cuh"
#include "device/cuda/row_fetch.cuh"

enum { THREADS = FETCH_THREADS, BLOCKS = 264, STAGES = 2 }; /* blocks: two an SM of 132 */

enum { DY, X, ONTO, FETCHED };

typedef struct {
    Tensor dy, x, w, mean, rstd, onto; /* mean, onto: data NULL where there is none */
    Tensor dx, dw, db;                 /* likewise */
    int64_t rows, width;
    float keep_dw, keep_db, per_width; /* 1 / width */
    float *part; /* [blocks, 1 or 2, width]: sums of dw, of db; NULL: dx alone */
    int sums, blocks;
} NormBack;

/* g and h of an element. Products are rounded by themselves, whatever they are added to. */
static __device__ inline float g_of(float dy, float w) { return __fmul_rn(dy, w); }
typedef struct {
    float mean, rstd, avg_g, avg_gh; /* an rmsnorm's mean and avg_g are 0 */
} RowNumbers;

template <bool LAYER> static __device__ inline float h_of(float x, const RowNumbers &r)
{
    return __fmul_rn(LAYER ? x - r.mean : x, r.rstd);
}

template <bool LAYER> static __device__ inline float dx_of(const RowNumbers &r, float g, float h)
{
    return __fmul_rn(r.rstd, fmaf(-h, r.avg_gh, LAYER ? g - r.avg_g : g));
}

/* The groups' sums, folded in their order, to the block's row of scratch. */
template <bool LAYER, int G, int K>
static __device__ inline void store_sums(const NormBack &m, float *fold,
                                         const float (*dw)[WALK_WIDE], const float (*db)[WALK_WIDE])
{
    const int group = threadIdx.x / G, lane = threadIdx.x % G;
    for (int which = 0; which < (LAYER ? 2 : 1); which++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < WALK_WIDE; e++) /* [group][k][e][lane] */
                fold[((group * K + k) * WALK_WIDE + e) * G + lane] = which ? db[k][e] : dw[k][e];
        __syncthreads();
        for (int i = threadIdx.x; i < K * WALK_WIDE * G; i += THREADS) {
            const int64_t column =
                ((int64_t)(i / (WALK_WIDE * G)) * G + i % G) * WALK_WIDE + i / G % WALK_WIDE;
            float sum = 0;
#pragma unroll
            for (int other = 0; other < THREADS / G; other++)
                sum += fold[other * K * WALK_WIDE * G + i];
            if (column < m.width)
                m.part[((int64_t)blockIdx.x * m.sums + which) * m.width + column] = sum;
        }
    }
}

template <bool LAYER, int G, int K, DType T>
static __global__ void __launch_bounds__(THREADS, 2) back_kernel(const __grid_constant__ NormBack m)
{
    enum { W = WALK_WIDE, GROUPS = THREADS / G };
    extern __shared__ uint4 stage[];
    enum { SUMS = LAYER ? 2 : 1 }; /* of g h, of g */
    __shared__ float part[2][SUMS][THREADS / 32];
    const RowFetch<G, K, T, STAGES, FETCHED> f = {stage, (int)(threadIdx.x % G),
                                                  (int)(m.width / W)};
    const int64_t step = (int64_t)gridDim.x * GROUPS;
    int64_t row = (int64_t)blockIdx.x * GROUPS + threadIdx.x / G;
    const int64_t rounds = (m.rows - blockIdx.x * GROUPS + step - 1) / step; /* of group 0 */
    auto fetch = [&](int s, int64_t at) {
        if (at < m.rows) {
            f.fetch(s, DY, m.dy, at);
            f.fetch(s, X, m.x, at);
            if (m.onto.data) f.fetch(s, ONTO, m.onto, at);
        }
        __pipeline_commit();
    };
    Piece<W> w[K];
    float dw[K][W] = {}, db[K][W] = {};
    fold_may_start();
#pragma unroll
    for (int k = 0; k < K; k++)
        if (m.dx.data && f.has(k)) w[k] = piece_load<W>(m.w.data, T, f.column(k));
    fetch(0, row);
    float mean = LAYER && row < m.rows ? stat_at(m.mean, row) : 0;
    float rstd = row < m.rows ? stat_at(m.rstd, row) : 0;
    for (int64_t round = 0; round < rounds; round++, row += step) {
        const int s = (int)(round % STAGES);
        const bool live = row < m.rows, more = row + step < m.rows;
        RowNumbers r = {mean, rstd, 0, 0};
        fetch((int)((round + 1) % STAGES), row + step);
        if (more && LAYER) mean = stat_at(m.mean, row + step);
        if (more) rstd = stat_at(m.rstd, row + step);
        __pipeline_wait_prior(1);
        if (m.dx.data) {
            float sum[SUMS] = {};
#pragma unroll
            for (int k = 0; k < K; k++) {
                float dy[W], x[W], v[W];
                if (!live || !f.has(k)) continue;
                f.floats(s, DY, k, dy);
                f.floats(s, X, k, x);
                piece_floats(w[k], T, v);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    const float g = g_of(dy[e], v[e]);
                    sum[0] = fmaf(g, h_of<LAYER>(x[e], r), sum[0]);
                    if (LAYER) sum[SUMS - 1] += g;
                }
            }
            sum_of_group<G, SUMS>(sum, &part[round % 2]);
            r.avg_gh = sum[0] * m.per_width;
            r.avg_g = LAYER ? sum[SUMS - 1] * m.per_width : 0;
        }
        const int64_t to = live && m.dx.data ? row_at(m.dx, m.dx.ndim - 1, row) : 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            float dy[W], x[W], v[W], onto[W] = {};
            if (!live || !f.has(k)) continue;
            f.floats(s, DY, k, dy);
            f.floats(s, X, k, x);
#pragma unroll
            for (int e = 0; e < W; e++) x[e] = h_of<LAYER>(x[e], r);
            if (m.part)
#pragma unroll
                for (int e = 0; e < W; e++) {
                    dw[k][e] = fmaf(dy[e], x[e], dw[k][e]);
                    if (LAYER) db[k][e] += dy[e];
                }
            if (!m.dx.data) continue;
            piece_floats(w[k], T, v);
            if (m.onto.data) f.floats(s, ONTO, k, onto);
#pragma unroll
            for (int e = 0; e < W; e++) v[e] = onto[e] + dx_of<LAYER>(r, g_of(dy[e], v[e]), x[e]);
            piece_store<W>(m.dx.data, T, to + f.column(k), v);
        }
    }
    if (m.part) store_sums<LAYER, G, K>(m, (float *)stage, dw, db);
}

/* Rows of any length and strides: read twice, and sums are in scratch while they grow. A thread has
 * the same columns in every row of its block. */
template <int W>
static __global__ void __launch_bounds__(THREADS) any_kernel(const __grid_constant__ NormBack m)
{
    const int last = m.x.ndim - 1;
    const DType type = m.x.dtype;
    float *dw = m.part + (int64_t)blockIdx.x * m.sums * m.width, *db = dw + m.width;
    for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
        const int64_t at_dy = row_at(m.dy, last, row), at_x = row_at(m.x, last, row);
        RowNumbers r = {stat_at(m.mean, row), stat_at(m.rstd, row), 0, 0};
        auto load = [&](const Tensor &t, int64_t at, int64_t i, float *v) {
            piece_floats(piece_load<W>(t.data, t.dtype, at + i * W * t.stride[t.ndim - 1]), type,
                         v);
        };
        if (m.dx.data) {
            float sum_g = 0, sum_gh = 0;
            for (int64_t i = threadIdx.x; i < m.width / W; i += THREADS) {
                float dy[W], x[W], w[W];
                load(m.dy, at_dy, i, dy);
                load(m.x, at_x, i, x);
                load(m.w, 0, i, w);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    const float g = g_of(dy[e], w[e]);
                    sum_g += g;
                    sum_gh = fmaf(g, h_of<true>(x[e], r), sum_gh);
                }
            }
            r.avg_gh = group_sum<THREADS>(sum_gh) * m.per_width;
            r.avg_g = m.mean.data ? group_sum<THREADS>(sum_g) * m.per_width : 0;
        }
        for (int64_t i = threadIdx.x; i < m.width / W; i += THREADS) {
            float dy[W], x[W], v[W], onto[W] = {};
            load(m.dy, at_dy, i, dy);
            load(m.x, at_x, i, x);
            if (m.dx.data) load(m.w, 0, i, v);
            if (m.onto.data) load(m.onto, row_at(m.onto, last, row), i, onto);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const int64_t j = i * W + e;
                const bool first = row == blockIdx.x;
                x[e] = h_of<true>(x[e], r);
                if (m.part) dw[j] = fmaf(dy[e], x[e], first ? 0 : dw[j]);
                if (m.part && m.sums > 1) db[j] = (first ? 0 : db[j]) + dy[e];
                v[e] = onto[e] + dx_of<true>(r, g_of(dy[e], v[e]), x[e]);
            }
            if (m.dx.data)
                piece_store<W>(m.dx.data, type, row_at(m.dx, last, row) + i * W * m.dx.stride[last],
                               v);
        }
    }
}

template <bool LAYER> struct Back {
    template <int G, int K, DType T> struct Launch {
        static Err run(const NormBack &m, cudaStream_t stream)
        {
            const int bytes = RowFetch<G, K, T, STAGES, FETCHED>::BYTES;
            CUDA_TRY(cudaFuncSetAttribute(back_kernel<LAYER, G, K, T>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
            back_kernel<LAYER, G, K, T><<<(unsigned)m.blocks, THREADS, bytes, stream>>>(m);
            return OK;
        }
    };
};

static bool is_wide(const NormBack &m)
{
    if (!walk_rows_wide(&m.dy) || !walk_rows_wide(&m.x)) return false;
    if (!m.dx.data) return true;
    if (m.onto.data && !walk_rows_wide(&m.onto)) return false;
    return walk_rows_wide(&m.w) && walk_rows_wide(&m.dx);
}

static Err launch(const Call *call, KernelId id, NormBack m)
{
    const cudaStream_t stream = call->queue->stream;
    void *scratch;
    const bool wide = is_wide(m);
    m.blocks = (int)(m.rows < BLOCKS ? m.rows : BLOCKS);
    m.sums = m.db.data ? 2 : 1;
    if (m.dw.data) {
        TRY(cuda_scratch(call->queue, sizeof(float) * (size_t)(m.sums * m.blocks * m.width) + 1,
                         &scratch));
        m.part = (float *)scratch;
    }
    if (m.blocks > 0 && wide && m.width <= fetch_most(m.x.dtype))
        TRY(m.mean.data ? fetch_run<Back<true>::Launch>(m, m.x.dtype, m.width, stream)
                        : fetch_run<Back<false>::Launch>(m, m.x.dtype, m.width, stream));
    else if (m.blocks > 0 && wide)
        any_kernel<WALK_WIDE><<<(unsigned)m.blocks, THREADS, 0, stream>>>(m);
    else if (m.blocks > 0)
        any_kernel<1><<<(unsigned)m.blocks, THREADS, 0, stream>>>(m);
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
    dw.dx.data = dw.onto.data = NULL;
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
