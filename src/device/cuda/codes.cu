/* codes.cu -- coded weights: parts of master weights as codes of 8 bits, and transposed codes. A
 * warp has 256 elements; those of one cell that it has make one atomic maximum. Never run. */
#include "device/codes.h"
#include "device/cuda/fp8.cuh"

enum { THREADS = 256, EACH = 8, WARP_ELEMENTS = 32 * EACH };

typedef struct {
    const float *x;
    float *m;
    uint8_t *y;
    int64_t n, at, rows, columns;
    int block;
    DType type;
    bool narrow; /* rounded to bf16 first */
} CodesArgs;

static __device__ inline int64_t cell_of(const CodesArgs &a, int64_t i)
{
    const int64_t at = a.at + i, matrix = at / (a.rows * a.columns);
    if (a.block == 0) return matrix;
    const int64_t row = at / a.columns % a.rows, across = (a.columns + a.block - 1) / a.block;
    return (matrix * ((a.rows + a.block - 1) / a.block) + row / a.block) * across +
           at % a.columns / a.block;
}

static __device__ inline float weight_of(const CodesArgs &a, int64_t i)
{
    return a.narrow ? __bfloat162float(__float2bfloat16_rn(a.x[i])) : a.x[i];
}

/* Magnitudes are not negative, so their bits are in order. Lanes of one cell meet first. */
static __global__ void __launch_bounds__(THREADS) amax_kernel(const __grid_constant__ CodesArgs a)
{
    const int64_t warp = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    for (int k = 0; k < EACH; k++) {
        const int64_t i = warp * WARP_ELEMENTS + k * 32 + threadIdx.x % 32;
        const bool mine = i < a.n;
        const int64_t cell = mine ? cell_of(a, i) : -1;
        const float size = mine ? fabsf(weight_of(a, i)) : 0;
        const int bits = size >= 0 ? __float_as_int(size) : 0; /* NaN counts for nothing */
        const bool alike = __all_sync(0xffffffffu, cell == __shfl_sync(0xffffffffu, cell, 0));
        if (alike) {
            const int most = __reduce_max_sync(0xffffffffu, bits);
            if (threadIdx.x % 32 == 0 && mine) atomicMax((int *)&a.m[cell], most);
        } else if (mine) {
            atomicMax((int *)&a.m[cell], bits);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) codes_kernel(const __grid_constant__ CodesArgs a)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.n) return;
    const float scaled = weight_of(a, i) * scale_of(a.type, a.m[cell_of(a, i)]).inverse;
    a.y[i] = isnan(scaled) ? 0x7f : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, fp8_kind(a.type));
}

static __global__ void __launch_bounds__(THREADS)
    scales_kernel(const float *m, float *s, int64_t n, DType type)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) s[i] = scale_of(type, m[i]).scale;
}

static CodesArgs args_of(const Call *call, float *m)
{
    CodesArgs a = {};
    a.x = (const float *)call->in[0].data;
    a.m = m;
    a.n = call->in[0].n[0];
    a.at = call->attr.codes.at;
    a.rows = call->attr.codes.rows, a.columns = call->attr.codes.columns;
    a.block = call->attr.codes.block;
    a.type = call->attr.codes.type;
    a.narrow = call->attr.codes.from == BF16;
    return a;
}

extern "C" Err cuda_weight_amax(const Call *call)
{
    const CodesArgs a = args_of(call, (float *)call->out[0].data);
    TRY(cuda_begin(call, KERNEL_weight_amax));
    if (a.n == 0) return OK;
    amax_kernel<<<(unsigned)blocks_of(a.n, THREADS * EACH), THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_weight_amax);
}

extern "C" Err cuda_weight_scales(const Call *call)
{
    const int64_t n = call->in[0].n[0];
    TRY(cuda_begin(call, KERNEL_weight_scales));
    if (n == 0) return OK;
    scales_kernel<<<(unsigned)blocks_of(n, THREADS), THREADS, 0, call->queue->stream>>>(
        (const float *)call->in[0].data, (float *)call->out[0].data, n, call->attr.codes.type);
    return cuda_launched(KERNEL_weight_scales);
}

extern "C" Err cuda_weight_codes(const Call *call)
{
    CodesArgs a = args_of(call, (float *)call->in[1].data);
    TRY(cuda_begin(call, KERNEL_weight_codes));
    if (a.n == 0) return OK;
    a.y = (uint8_t *)call->out[0].data;
    codes_kernel<<<(unsigned)blocks_of(a.n, THREADS), THREADS, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_weight_codes);
}

/* A tile of 32 x 32 codes by a block of 32 x 8 threads, through shared memory. */
static __global__ void turn_kernel(const __grid_constant__ Tensor x,
                                   const __grid_constant__ Tensor z)
{
    __shared__ uint8_t tile[32][33];
    const int64_t row = (int64_t)blockIdx.y * 32, column = (int64_t)blockIdx.x * 32;
    for (int k = threadIdx.y; k < 32; k += 8)
        if (row + k < x.n[0] && column + threadIdx.x < x.n[1])
            tile[k][threadIdx.x] =
                ((const uint8_t *)
                     x.data)[(row + k) * x.stride[0] + (column + threadIdx.x) * x.stride[1]];
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += 8)
        if (column + k < z.n[0] && row + threadIdx.x < z.n[1])
            ((uint8_t *)z.data)[(column + k) * z.stride[0] + (row + threadIdx.x) * z.stride[1]] =
                tile[threadIdx.x][k];
}

extern "C" Err cuda_turn(const Call *call)
{
    const Tensor *x = &call->in[0];
    const dim3 blocks((unsigned)blocks_of(x->n[1], 32), (unsigned)blocks_of(x->n[0], 32));
    TRY(cuda_begin(call, KERNEL_turn));
    if (tensor_count(x) == 0) return OK;
    turn_kernel<<<blocks, dim3(32, 8), 0, call->queue->stream>>>(*x, call->out[0]);
    return cuda_launched(KERNEL_turn);
}
