/* norm_back_rows.cuh -- gradients of norms of prefetched rows (row_fetch.cuh); the formulas are in
 * norm_back.cu. A thread's column sums stay in registers over all its rows; the groups of a block
 * are added in shared memory.
 *
 *     registers   w   dw   db   dbias            K pieces each; if that is too much, w is read from
 *     stages      dy x addend | dy x addend | w  shared memory for each row (weights_in_shared) */
#ifndef DEVICE_CUDA_NORM_BACK_ROWS_CUH
#define DEVICE_CUDA_NORM_BACK_ROWS_CUH

#include "device/cuda/row_fetch.cuh"

enum { STAGES = 2 };

enum { DY, X, ADDEND, FETCHED };

typedef struct {
    RowSpan dy, x, addend, dx, mean, rstd; /* mean, addend, dx: data NULL if absent */
    const char *w;                         /* for dx */
    RowSet rows;
    float per_width; /* 1 / width */
    float *part;     /* [blocks, sums, width]; NULL: dx only */
    int sums, blocks;
} NormBackPrefetchArgs;

/* Adds the groups' sums in their order and writes them to the block's row of scratch. */
template <class Fetch, int G, int K>
static __device__ inline void store_sums(const NormBackPrefetchArgs &m, int which, float *fold,
                                         const float (&sum)[K][WALK_WIDE])
{
    enum { W = WALK_WIDE, ALL = K * W * G }; /* columns of a group: [k][e][lane] */
    const int group = threadIdx.x / G, lane = threadIdx.x % G;
    const int width = m.rows.pieces * W;
    __syncthreads(); /* the previous contents have been read */
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

/* Coefficients that the elements of a row share: dx = rstd g + slope x + level + addend. */
typedef struct {
    float rstd, shift; /* h = rstd x + shift */
    float slope, level;
} RowLine;

/* Sets slope and level, from the row's averages of g h and of g. */
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
static __device__ inline float dx_of(const RowLine &r, float g, float x, float addend)
{
    return fmaf(g, r.rstd, fmaf(x, r.slope, LAYER ? addend + r.level : addend));
}

/* This thread's part of w: in registers, or in an extra row of the stages if sums need the
 * registers. */
template <class Fetch, int K, bool IN_SHARED> struct Weights {
    const Fetch &f;
    float v[IN_SHARED ? 1 : K][WALK_WIDE];
    __device__ Weights(const Fetch &fetch, const char *w) : f(fetch)
    {
        if constexpr (IN_SHARED) {
            f.fetch(STAGES, 0, w);
            __pipeline_commit();
        } else {
            f.vector(w, v);
        }
    }
    __device__ void floats(int k, float *w) const
    {
        if (IN_SHARED) f.floats(STAGES, 0, k, w);
#pragma unroll
        for (int e = 0; e < WALK_WIDE && !IN_SHARED; e++) w[e] = v[IN_SHARED ? 0 : k][e];
    }
};

/* Writes a row's dx from stage s, and adds the addend to its sum. */
template <bool LAYER, bool BIAS, DType T, class Fetch, class Vector, int K>
static __device__ inline void write_dx(const Fetch &f, int s, const RowLine &r,
                                       const Vector &weights, char *dx,
                                       float (&dbias)[K][WALK_WIDE])
{
    enum { W = WALK_WIDE };
#pragma unroll
    for (int k = 0; k < K; k++) {
        float dy[W], x[W], addend[W], w[W];
        f.floats(s, DY, k, dy);
        f.floats(s, X, k, x);
        f.floats(s, ADDEND, k, addend);
        weights.floats(k, w);
#pragma unroll
        for (int e = 0; e < W; e++) {
            x[e] = dx_of<LAYER>(r, __fmul_rn(dy[e], w[e]), x[e], addend[e]);
            if (BIAS) dbias[k][e] += addend[e];
        }
        if (f.has(k)) piece_store<W>(dx + f.piece_offset(k), T, 0, x);
    }
}

/* True if four vectors of a row exceed the registers. */
template <bool BIAS, int K, DType T> static constexpr __host__ __device__ bool weights_in_shared()
{
    return BIAS && T == BF16 && K > 3;
}

template <bool BIAS, int G, int K, DType T>
using BackFetch = RowFetch<G, K, T, STAGES, FETCHED, weights_in_shared<BIAS, K, T>()>;

template <bool LAYER, bool BIAS, class Fetch, int G, int K, int W>
static __device__ inline void store_all(const NormBackPrefetchArgs &m, float *stage,
                                        float (&dw)[K][W], float (&db)[K][W], float (&dbias)[K][W])
{
    store_sums<Fetch, G, K>(m, 0, stage, dw);
    if (LAYER) store_sums<Fetch, G, K>(m, 1, stage, db);
    if (BIAS) store_sums<Fetch, G, K>(m, 2, stage, dbias);
}

template <bool LAYER, bool BIAS, int G, int K, DType T>
static __global__ void __launch_bounds__(BackFetch<BIAS, G, K, T>::THREADS, 2)
    back_kernel(const __grid_constant__ NormBackPrefetchArgs m)
{
    typedef BackFetch<BIAS, G, K, T> Fetch;
    enum { W = WALK_WIDE, SUMS = LAYER ? 2 : 1 }; /* of g h; of g */
    extern __shared__ uint4 stage[];
    __shared__ float part[2][SUMS][Fetch::WARPS];
    const Fetch f(stage, m.rows.pieces);
    const uint32_t step = gridDim.x * Fetch::GROUPS, mine = threadIdx.x / G;
    const uint32_t start = blockIdx.x * Fetch::GROUPS + mine,
                   group_in_warp = G < 32 ? mine % (32 / G) : 0;
    float dw[K][W] = {}, db[K][W] = {}, dbias[K][W] = {}, mean = 0, rstd = 0;
    auto fetch = [&](int s, uint32_t row) {
        if (row < m.rows.n) {
            const RowPlace at = row_place(m.rows, row);
            f.fetch(s, DY, span_at(m.dy, at));
            f.fetch(s, X, span_at(m.x, at));
            if (m.addend.data) f.fetch(s, ADDEND, span_at(m.addend, at));
            if (LAYER) mean = *(const float *)span_at(m.mean, at);
            rstd = *(const float *)span_at(m.rstd, at);
        }
        __pipeline_commit();
    };
    pdl_trigger();
    pdl_wait();
    fetch(0, start);
    /* Complete with the first row. */
    const Weights<Fetch, K, weights_in_shared<BIAS, K, T>()> weights(f, m.w);
    int s = 0;
    /* The groups of a warp continue together until the first of them is done. */
    for (uint32_t row = start; row - group_in_warp < m.rows.n; row += step, s ^= 1) {
        RowLine r = {rstd, LAYER ? -__fmul_rn(mean, rstd) : 0, 0, 0};
        float sum[SUMS] = {};
        fetch(s ^ 1, row + step);
        __pipeline_wait_prior(1);
        if (G < 32 && row >= m.rows.n) r = {}, f.clear(s, DY);
#pragma unroll
        for (int k = 0; k < K; k++) {
            float dy[W], x[W], w[W];
            f.floats(s, DY, k, dy);
            f.floats(s, X, k, x);
            weights.floats(k, w);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const float g = __fmul_rn(dy[e], w[e]), h = h_of<LAYER>(r, x[e]);
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
        if (K > 3) __syncwarp(); /* makes the compiler reload values that exceed the registers */
        write_dx<LAYER, BIAS, T>(f, s, r, weights, dx, dbias);
    }
    if (!m.part) return;
    __pipeline_wait_prior(0); /* an empty group of each thread may be pending */
    store_all<LAYER, BIAS, Fetch, G>(m, (float *)stage, dw, db, dbias);
}

#endif
