/* fp8.cu -- quantization to 8 bits with scales of blocks, and GEMMs on operands of 8 bits.
 *
 * A GEMM with a scale for each whole operand runs by cuBLASLt (gemm/fp8_gemm.c), if that can; all
 * others run here, on tiles that are widened to f32 in shared memory. */
#include "base/math.h"
#include "device/cuda/fp8.cuh"
#include "device/cuda/gemm/fp8_gemm.h"

enum { THREADS = 256, TILE = 32, ROWS = 8 };

static __device__ inline float code_value(DType t, uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, fp8_kind(t))));
}

static __device__ inline float matrix_get(const Tensor &x, int64_t i, int64_t j)
{
    return value_get(x.data, x.dtype, i * x.stride[0] + j * x.stride[1]);
}

static __device__ inline void quantize_at(const Tensor &x, const Tensor &y, int64_t i, int64_t j,
                                          float inverse)
{
    const float scaled = matrix_get(x, i, j) * inverse;
    ((uint8_t *)y.data)[i * y.stride[0] + j * y.stride[1]] =
        isnan(scaled) ? 0x7f : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, fp8_kind(y.dtype));
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
    const Fp8Scale s = scale_of(a.y.dtype, group_max<THREADS>(most));
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
    TRY(fp8_gemm_by_cublaslt(call, false, &done));
    return done ? OK : run_tiles(call);
}

/* On tiles the addend is c already. */
extern "C" Err cuda_scaled_gemm_add(const Call *call)
{
    Call copy = {}, sum = *call;
    bool done;
    TRY(cuda_begin(call, KERNEL_scaled_gemm_add));
    if (tensor_count(&call->out[0]) == 0) return OK;
    TRY(fp8_gemm_by_cublaslt(call, true, &done));
    if (done) return OK;
    copy.n_in = copy.n_out = 1;
    copy.in[0] = call->in[4], copy.out[0] = call->out[0];
    copy.queue = call->queue;
    if (call->in[4].data != call->out[0].data) TRY(cuda_copy(&copy));
    sum.n_in = call->n_in - 1;
    sum.in[4] = call->in[5];
    sum.number[0] = 1;
    return run_tiles(&sum);
}
