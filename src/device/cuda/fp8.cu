/* fp8.cu -- quantization to 8 bits, and GEMMs on operands of 8 bits.
 *
 *     x --amax--> m          blocks of threads, then one atomic maximum each
 *     x, m --quantize--> y   cvt.rn.satfinite of x * inverse, the numbers of base/fp8.h
 *
 * A GEMM with a scale for each whole operand runs by cuBLASLt (gemm/fp8_gemm.cu), if that can; all
 * others run here, on tiles that are widened to f32 in shared memory. */
#include <cuda_fp8.h>
#include "base/fp8.h"
#include "base/math.h"
#include "device/cuda/gemm/fp8_gemm.h"
#include "device/cuda/value.cuh"

enum { THREADS = 256, TILE = 32, ROWS = 8, MAX_BLOCKS = 1024 };

static __device__ inline __nv_fp8_interpretation_t kind_of(DType t)
{
    return t == E4M3 ? __NV_E4M3 : __NV_E5M2;
}

static __device__ inline float largest_code(DType t) { return t == E4M3 ? 448.0f : 57344.0f; }

/* As fp8_scale of base/fp8.h, with divisions that round to nearest. */
static __device__ inline Fp8Scale scale_of(DType t, float amax)
{
    const float least = 7.888609052210118e-31f; /* 2^-100 */
    Fp8Scale s = {1, 1};
    if (amax == 0) return s;
    const float a = amax < least ? least : amax;
    s.scale = __fdiv_rn(a, largest_code(t));
    s.inverse = __fdiv_rn(largest_code(t), a);
    return s;
}

static __device__ inline float code_value(DType t, uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kind_of(t))));
}

static __device__ inline float matrix_get(const Tensor &x, int64_t i, int64_t j)
{
    return value_get(x.data, x.dtype, i * x.stride[0] + j * x.stride[1]);
}

/* The largest of a block's threads, in all of them. */
static __device__ inline float block_largest(float x)
{
    __shared__ float warp[THREADS / 32];
    for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) x = fmaxf(x, warp[w]);
    return x;
}

/* Magnitudes are not negative, so their bits are in order. */
static __global__ void __launch_bounds__(THREADS)
    amax_kernel(const __grid_constant__ Tensor x, float *m)
{
    const int64_t n = x.n[0] * x.n[1], step = (int64_t)gridDim.x * THREADS;
    float most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        most = fmaxf(most, fabsf(matrix_get(x, i / x.n[1], i % x.n[1])));
    most = block_largest(most);
    if (threadIdx.x == 0) atomicMax((int *)m, __float_as_int(most));
}

extern "C" Err cuda_amax(const Call *call)
{
    const Tensor x = call->in[0];
    const int64_t blocks = blocks_of(tensor_count(&x), 8 * THREADS);
    float *m = (float *)call->out[0].data;
    TRY(cuda_begin(call, KERNEL_amax));
    CUDA_TRY(cudaMemsetAsync(m, 0, sizeof *m, call->queue->stream));
    if (blocks == 0) return OK;
    amax_kernel<<<(unsigned)min_i64(blocks, MAX_BLOCKS), THREADS, 0, call->queue->stream>>>(x, m);
    return cuda_launched(KERNEL_amax);
}

static __device__ inline void quantize_at(const Tensor &x, const Tensor &y, int64_t i, int64_t j,
                                          float inverse)
{
    const float scaled = matrix_get(x, i, j) * inverse;
    ((uint8_t *)y.data)[i * y.stride[0] + j * y.stride[1]] =
        isnan(scaled) ? 0x7f : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, kind_of(y.dtype));
}

static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(const __grid_constant__ Tensor x, const __grid_constant__ Tensor y,
                    const float *m, float *out)
{
    const Fp8Scale s = scale_of(y.dtype, *m);
    const int64_t n = x.n[0] * x.n[1], step = (int64_t)gridDim.x * THREADS;
    if (blockIdx.x == 0 && threadIdx.x == 0) *out = s.scale;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        quantize_at(x, y, i / x.n[1], i % x.n[1], s.inverse);
}

extern "C" Err cuda_quantize(const Call *call)
{
    const Tensor x = call->in[0];
    const int64_t blocks = max_i64(blocks_of(tensor_count(&x), 4 * THREADS), 1);
    TRY(cuda_begin(call, KERNEL_quantize));
    quantize_kernel<<<(unsigned)min_i64(blocks, 16 * MAX_BLOCKS), THREADS, 0,
                      call->queue->stream>>>(x, call->out[0], (const float *)call->in[1].data,
                                             (float *)call->out[1].data);
    return cuda_launched(KERNEL_quantize);
}

typedef struct {
    Tensor x, y, s;
    int32_t block[2];
} QuantizeBlocksArgs;

/* A block of threads for each scale. */
static __global__ void __launch_bounds__(THREADS)
    quantize_blocks_kernel(const __grid_constant__ QuantizeBlocksArgs a)
{
    const int64_t row = blockIdx.x / a.s.n[1] * a.block[0],
                  column = blockIdx.x % a.s.n[1] * a.block[1];
    const int64_t rows = min(a.x.n[0] - row, (int64_t)a.block[0]),
                  columns = min(a.x.n[1] - column, (int64_t)a.block[1]), n = rows * columns;
    float most = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        most = fmaxf(most, fabsf(matrix_get(a.x, row + i / columns, column + i % columns)));
    const Fp8Scale s = scale_of(a.y.dtype, block_largest(most));
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        quantize_at(a.x, a.y, row + i / columns, column + i % columns, s.inverse);
    if (threadIdx.x == 0) ((float *)a.s.data)[blockIdx.x] = s.scale;
}

extern "C" Err cuda_quantize_blocks(const Call *call)
{
    QuantizeBlocksArgs a = {};
    a.x = call->in[0], a.y = call->out[0], a.s = call->out[1];
    a.block[0] = call->attr.quantize.block[0], a.block[1] = call->attr.quantize.block[1];
    const int64_t blocks = tensor_count(&a.s);
    TRY(cuda_begin(call, KERNEL_quantize_blocks));
    if (blocks == 0) return OK;
    quantize_blocks_kernel<<<(unsigned)blocks, THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_quantize_blocks);
}

/* ---- GEMMs that cuBLASLt does not run ---- */

typedef struct {
    Tensor a, b, sa, sb, bias, c; /* bias: data NULL if there is none */
    int32_t a_block[2], b_block[2];
    bool ta, tb;
    int64_t k;
    float keep;
} ScaledGemmArgs;

/* An element of the formula: its code times its scale. */
static __device__ inline float scaled_at(const Tensor &x, const Tensor &s, const int32_t *block,
                                         bool transposed, int64_t row, int64_t column)
{
    const int64_t i = transposed ? column : row, j = transposed ? row : column;
    const uint8_t code = ((const uint8_t *)x.data)[i * x.stride[0] + j * x.stride[1]];
    const int64_t at = block[0] ? i / block[0] * s.n[1] + j / block[1] : 0;
    return code_value(x.dtype, code) * ((const float *)s.data)[at];
}

static __global__ void __launch_bounds__(TILE *ROWS)
    scaled_gemm_kernel(const __grid_constant__ ScaledGemmArgs p)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int64_t across = (p.c.n[1] + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, column = blockIdx.x % across * TILE;
    const int x = threadIdx.x, y = threadIdx.y;
    const int64_t m = p.c.n[0], n = p.c.n[1];
    float sum[TILE / ROWS] = {};
    for (int64_t from = 0; from < p.k; from += TILE) {
        for (int i = y; i < TILE; i += ROWS) {
            a[i][x] = row + i < m && from + x < p.k
                          ? scaled_at(p.a, p.sa, p.a_block, p.ta, row + i, from + x)
                          : 0;
            b[i][x] = from + i < p.k && column + x < n
                          ? scaled_at(p.b, p.sb, p.b_block, p.tb, from + i, column + x)
                          : 0;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / ROWS; r++) sum[r] += a[y + r * ROWS][k] * b[k][x];
        __syncthreads();
    }
    if (column + x >= n) return;
    const float bias =
        p.bias.data ? value_get(p.bias.data, p.bias.dtype, (column + x) * p.bias.stride[0]) : 0;
    for (int r = 0; r < TILE / ROWS; r++) {
        const int64_t i = row + y + r * ROWS;
        if (i < m)
            value_keep(p.c.data, p.c.dtype, i * p.c.stride[0] + (column + x) * p.c.stride[1],
                       p.keep, sum[r] + bias);
    }
}

static Err run_tiles(const Call *call)
{
    ScaledGemmArgs p = {};
    p.a = call->in[0], p.b = call->in[1], p.sa = call->in[2], p.sb = call->in[3];
    p.c = call->out[0];
    if (call->n_in > 4) p.bias = call->in[4];
    for (int d = 0; d < 2; d++) {
        p.a_block[d] = call->attr.gemm.a_block[d];
        p.b_block[d] = call->attr.gemm.b_block[d];
    }
    p.ta = call->attr.gemm.ta, p.tb = call->attr.gemm.tb;
    p.k = p.a.n[!p.ta];
    p.keep = (float)call->number[0];
    const int64_t tiles = blocks_of(p.c.n[0], TILE) * blocks_of(p.c.n[1], TILE);
    if (tiles == 0) return OK;
    scaled_gemm_kernel<<<(unsigned)tiles, dim3(TILE, ROWS), 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_scaled_gemm);
}

extern "C" Err cuda_scaled_gemm(const Call *call)
{
    bool done;
    TRY(cuda_begin(call, KERNEL_scaled_gemm));
    if (tensor_count(&call->out[0]) == 0) return OK;
    TRY(fp8_gemm_by_cublaslt(call, &done));
    return done ? OK : run_tiles(call);
}
