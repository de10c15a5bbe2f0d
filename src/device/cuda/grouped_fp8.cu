/* grouped_fp8.cu -- experts in 8 bits: a scale for each expert, of its rows and of its matrix, and
 * GEMMs on plain tiles, which are slow. Never run; runs on a GPU leave experts in bf16.
 *
 *     x [r,i]    rows offsets[e] .. offsets[e + 1] are those of expert e
 *     s [e]      first the bits of the largest magnitude, by atomic maxima; then the scale */
#include "base/math.h"
#include "device/cuda/fp8.cuh"

enum { THREADS = 256, TILE = 32, ROWS = 8, SLICES = 64 };

/* Rows of experts, or matrices of experts as rows: `rows` each. */
typedef struct {
    Tensor x, y;
    float *s;
    const int32_t *offsets; /* NULL: `rows` for each expert */
    int64_t rows, columns;
    DType type;
} ExpertRows;

static __device__ inline int64_t first_row(const ExpertRows &a, int64_t e)
{
    return a.offsets ? a.offsets[e] : e * a.rows;
}

static __device__ inline float element(const ExpertRows &a, int64_t row, int64_t column)
{
    const int64_t step = a.offsets ? a.x.stride[0] : a.columns;
    const int64_t across = a.offsets ? a.x.stride[1] : 1;
    return value_get(a.x.data, a.x.dtype, row * step + column * across);
}

/* A column of blocks for each expert. Magnitudes are not negative, so their bits are in order. */
static __global__ void __launch_bounds__(THREADS)
    largest_kernel(const __grid_constant__ ExpertRows a)
{
    const int64_t first = first_row(a, blockIdx.x), end = first_row(a, blockIdx.x + 1);
    const int64_t n = (end - first) * a.columns, step = (int64_t)gridDim.y * THREADS;
    float most = 0;
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < n; i += step)
        most = fmaxf(most, fabsf(element(a, first + i / a.columns, i % a.columns)));
    most = group_max<THREADS>(most);
    if (threadIdx.x == 0) atomicMax((int *)&a.s[blockIdx.x], __float_as_int(most));
}

static __global__ void __launch_bounds__(THREADS) codes_kernel(const __grid_constant__ ExpertRows a)
{
    const int64_t first = first_row(a, blockIdx.x), end = first_row(a, blockIdx.x + 1);
    const int64_t n = (end - first) * a.columns, step = (int64_t)gridDim.y * THREADS;
    const float inverse = scale_of(a.type, a.s[blockIdx.x]).inverse;
    uint8_t *y = (uint8_t *)a.y.data;
    for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < n; i += step) {
        const int64_t row = first + i / a.columns, column = i % a.columns;
        const float scaled = element(a, row, column) * inverse;
        const int64_t to =
            a.offsets ? row * a.y.stride[0] + column * a.y.stride[1] : row * a.columns + column;
        y[to] =
            isnan(scaled) ? 0x7f : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, fp8_kind(a.type));
    }
}

static __global__ void scales_kernel(float *s, int64_t n, DType type)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e < n) s[e] = scale_of(type, s[e]).scale;
}

static Err run_quantize(const Call *call, ExpertRows a, KernelId id)
{
    const int64_t experts = call->out[1].n[0];
    const cudaStream_t stream = call->queue->stream;
    const dim3 blocks((unsigned)experts, SLICES);
    a.x = call->in[0], a.y = call->out[0];
    a.s = (float *)call->out[1].data;
    a.type = call->attr.quantize.type;
    TRY(cuda_begin(call, id));
    if (experts == 0) return OK;
    CUDA_TRY(cudaMemsetAsync(a.s, 0, (size_t)experts * sizeof *a.s, stream));
    largest_kernel<<<blocks, THREADS, 0, stream>>>(a);
    codes_kernel<<<blocks, THREADS, 0, stream>>>(a);
    scales_kernel<<<(unsigned)blocks_of(experts, THREADS), THREADS, 0, stream>>>(a.s, experts,
                                                                                 a.type);
    return cuda_launched(id);
}

extern "C" Err cuda_grouped_quantize(const Call *call)
{
    ExpertRows a = {};
    a.offsets = (const int32_t *)call->in[1].data;
    a.columns = call->in[0].n[1];
    return run_quantize(call, a, KERNEL_grouped_quantize);
}

/* Matrices are dense. */
extern "C" Err cuda_stack_quantize(const Call *call)
{
    ExpertRows a = {};
    a.rows = call->in[0].n[1];
    a.columns = call->in[0].n[2];
    return run_quantize(call, a, KERNEL_stack_quantize);
}

/* c = keep c + a b for the rows of an expert, or for its matrix. */
typedef struct {
    Tensor a, b, c;
    const float *sa, *sb;
    const int32_t *offsets;
    bool tb, dw; /* dw: a and b are rows, c a stack of matrices */
    float keep;
} ScaledExpertsArgs;

static __device__ inline float code_at(const Tensor &x, int64_t i, int64_t j)
{
    const uint8_t code = ((const uint8_t *)x.data)[i * x.stride[0] + j * x.stride[1]];
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, fp8_kind(x.dtype))));
}

static __device__ inline float stacked_at(const Tensor &x, int64_t e, int64_t i, int64_t j)
{
    const uint8_t code =
        ((const uint8_t *)x.data)[e * x.stride[0] + i * x.stride[1] + j * x.stride[2]];
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, fp8_kind(x.dtype))));
}

/* A tile of an expert: blockIdx.y; tiles past its last row return. */
static __global__ void __launch_bounds__(TILE *ROWS)
    grouped_kernel(const __grid_constant__ ScaledExpertsArgs p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int64_t e = blockIdx.y, first = p.offsets[e], count = p.offsets[e + 1] - first;
    const int64_t m = p.dw ? p.c.n[1] : count, n = p.dw ? p.c.n[2] : p.c.n[1];
    const int64_t depth = p.dw ? count : p.a.n[1], across = (n + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    float sum[TILE / ROWS] = {};
    if (row >= m) return;
    for (int64_t from = 0; from < depth; from += TILE) {
        for (int i = y; i < TILE; i += ROWS) {
            const int64_t k = from + x, l = from + i;
            a[i][x] = row + i >= m || k >= depth ? 0
                      : p.dw                     ? code_at(p.a, first + k, row + i)
                                                 : code_at(p.a, first + row + i, k);
            b[i][x] = l >= depth || column + x >= n ? 0
                      : p.dw                        ? code_at(p.b, first + l, column + x)
                      : p.tb                        ? stacked_at(p.b, e, column + x, l)
                                                    : stacked_at(p.b, e, l, column + x);
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += a[y + r * ROWS][k] * b[k][x];
        __syncthreads();
    }
    const float scale = p.sa[e] * p.sb[e];
    for (int r = 0; r < TILE / ROWS; r++) {
        const int64_t i = row + y + r * ROWS, j = column + x;
        const int64_t at = p.dw ? e * p.c.stride[0] + i * p.c.stride[1] + j * p.c.stride[2]
                                : (first + i) * p.c.stride[0] + j * p.c.stride[1];
        if (i < m && j < n)
            value_keep(p.c.data, p.c.dtype, at, p.keep, depth > 0 ? sum[r] * scale : 0);
    }
}

static Err run_grouped(const Call *call, bool dw, KernelId id)
{
    ScaledExpertsArgs p = {};
    p.a = call->in[0], p.b = call->in[1], p.c = call->out[0];
    p.sa = (const float *)call->in[2].data, p.sb = (const float *)call->in[3].data;
    p.offsets = (const int32_t *)call->in[4].data;
    p.tb = call->attr.gemm.tb, p.dw = dw;
    p.keep = (float)call->number[0];
    const int64_t experts = call->in[4].n[0] - 1, m = p.c.n[dw ? 1 : 0], n = p.c.n[dw ? 2 : 1];
    const int64_t tiles = blocks_of(m, TILE) * blocks_of(n, TILE);
    TRY(cuda_begin(call, id));
    if (tiles == 0 || experts <= 0) return OK;
    grouped_kernel<<<dim3((unsigned)tiles, (unsigned)experts), dim3(TILE, ROWS), 0,
                     call->queue->stream>>>(p);
    return cuda_launched(id);
}

extern "C" Err cuda_grouped_scaled_gemm(const Call *call)
{
    return run_grouped(call, false, KERNEL_grouped_scaled_gemm);
}

extern "C" Err cuda_grouped_scaled_gemm_dw(const Call *call)
{
    return run_grouped(call, true, KERNEL_grouped_scaled_gemm_dw);
}
