/* norm_back_any.cuh -- gradients of norms of rows of any length and strides. Rows are read twice,
 * and column sums accumulate in scratch. The formulas are in norm_back.cu. */
#ifndef DEVICE_CUDA_NORM_BACK_ANY_CUH
#define DEVICE_CUDA_NORM_BACK_ANY_CUH

#include "device/cuda/norm_rows.cuh"

enum { ANY_THREADS = 256 };

typedef struct {
    Tensor dy, x, w, mean, rstd, addend; /* mean, addend: data NULL if absent */
    Tensor dx, dw, db, dbias;            /* data NULL if absent */
    int64_t rows, width;
    float keep_dw, keep_db, keep_dbias, per_width; /* per_width: 1 / width */
    float *part; /* [blocks, sums, width]: of dw, db, dbias; NULL: dx only */
    int sums, blocks;
} NormBackArgs;

/* Statistics of a row. Multiplications are rounded separately, whatever they are added to. */
typedef struct {
    float mean, rstd, avg_g, avg_gh; /* mean and avg_g of an rmsnorm are 0 */
} NormBackRow;

static __device__ inline float g_of(float dy, float w) { return __fmul_rn(dy, w); }
static __device__ inline float h_of(float x, const NormBackRow &r)
{
    return __fmul_rn(x - r.mean, r.rstd);
}
static __device__ inline float dx_of(const NormBackRow &r, float g, float h)
{
    return __fmul_rn(r.rstd, fmaf(-h, r.avg_gh, g - r.avg_g));
}

/* A thread has the same columns in every row of its block. */
template <int W>
static __global__ void __launch_bounds__(ANY_THREADS)
    any_kernel(const __grid_constant__ NormBackArgs m)
{
    const int last = m.x.ndim - 1;
    const DType type = m.x.dtype;
    float *dw = m.part + (int64_t)blockIdx.x * m.sums * m.width, *db = dw + m.width;
    for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
        const int64_t at_dy = row_at(m.dy, last, row), at_x = row_at(m.x, last, row);
        NormBackRow r = {stat_at(m.mean, row), stat_at(m.rstd, row), 0, 0};
        auto load = [&](const Tensor &t, int64_t at, int64_t i, float *v) {
            piece_floats(piece_load<W>(t.data, t.dtype, at + i * W * t.stride[t.ndim - 1]), type,
                         v);
        };
        if (m.dx.data) {
            float sum_g = 0, sum_gh = 0;
            for (int64_t i = threadIdx.x; i < m.width / W; i += ANY_THREADS) {
                float dy[W], x[W], w[W];
                load(m.dy, at_dy, i, dy);
                load(m.x, at_x, i, x);
                load(m.w, 0, i, w);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    const float g = g_of(dy[e], w[e]);
                    sum_g += g;
                    sum_gh = fmaf(g, h_of(x[e], r), sum_gh);
                }
            }
            r.avg_gh = group_sum<ANY_THREADS>(sum_gh) * m.per_width;
            r.avg_g = m.mean.data ? group_sum<ANY_THREADS>(sum_g) * m.per_width : 0;
        }
        for (int64_t i = threadIdx.x; i < m.width / W; i += ANY_THREADS) {
            float dy[W], x[W], v[W], addend[W] = {};
            load(m.dy, at_dy, i, dy);
            load(m.x, at_x, i, x);
            if (m.dx.data) load(m.w, 0, i, v);
            if (m.addend.data) load(m.addend, row_at(m.addend, last, row), i, addend);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const int64_t j = i * W + e;
                const bool first = row == blockIdx.x;
                x[e] = h_of(x[e], r);
                if (m.part) dw[j] = fmaf(dy[e], x[e], first ? 0 : dw[j]);
                if (m.part && m.sums > 1) db[j] = (first ? 0 : db[j]) + dy[e];
                v[e] = addend[e] + dx_of(r, g_of(dy[e], v[e]), x[e]);
            }
            if (m.dx.data)
                piece_store<W>(m.dx.data, type, row_at(m.dx, last, row) + i * W * m.dx.stride[last],
                               v);
        }
    }
}

#endif
