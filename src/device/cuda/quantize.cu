/* quantize.cu -- quantization to 8 bits with one scale.
 *
 *     x --amax--> m             blocks of threads, then one atomic maximum each
 *     x, m --quantize--> y, z   cvt.rn.satfinite of x * inverse, plain and transposed (fp8.cuh)
 *
 * Contiguous, aligned rows are read eight elements at a time, others element by element. */
#include "base/math.h"
#include "device/cuda/fp8.cuh"

enum { THREADS = 256, MAX_BLOCKS = 1024, PIECES = 8 };

static __device__ inline float matrix_get(const Tensor &x, int64_t i, int64_t j)
{
    return value_get(x.data, x.dtype, i * x.stride[0] + j * x.stride[1]);
}

/* Magnitudes are not negative, so their bits are in order. */
static __device__ inline void keep_largest(float most, float *m)
{
    most = group_max<THREADS>(most);
    if (threadIdx.x == 0) atomicMax((int *)m, __float_as_int(most));
}

/* Rows of `across` pieces of eight elements. */
static __global__ void __launch_bounds__(THREADS)
    amax_wide_kernel(const __grid_constant__ Tensor x, int64_t across, float *m)
{
    const int64_t n = x.n[0] * across, step = (int64_t)gridDim.x * THREADS;
    float most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float part[8];
        const int64_t at = i / across * x.stride[0] + i % across * 8;
        piece_floats(piece_load<8>(x.data, x.dtype, at), x.dtype, part);
#pragma unroll
        for (int k = 0; k < 8; k++) most = fmaxf(most, fabsf(part[k]));
    }
    keep_largest(most, m);
}

static __global__ void __launch_bounds__(THREADS)
    amax_kernel(const __grid_constant__ Tensor x, float *m)
{
    const int64_t n = x.n[0] * x.n[1], step = (int64_t)gridDim.x * THREADS;
    float most = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        most = fmaxf(most, fabsf(matrix_get(x, i / x.n[1], i % x.n[1])));
    keep_largest(most, m);
}

extern "C" Err cuda_amax(const Call *call)
{
    Tensor x = call->in[0];
    const bool wide = walk_rows_wide(&x) && x.n[1] % 8 == 0;
    const int64_t pieces = wide ? tensor_count(&x) / 8 : tensor_count(&x);
    const unsigned blocks = (unsigned)min_i64(blocks_of(pieces, PIECES * THREADS), MAX_BLOCKS);
    cudaStream_t stream = call->queue->stream;
    float *m = (float *)call->out[0].data;
    TRY(cuda_begin(call, KERNEL_amax));
    CUDA_TRY(cudaMemsetAsync(m, 0, sizeof *m, stream));
    if (blocks == 0) return OK;
    if (x.stride[0] == x.n[1] && wide) { /* one row: no division by its length in the loop */
        x.n[1] *= x.n[0];
        x.n[0] = 1;
    }
    if (wide)
        amax_wide_kernel<<<blocks, THREADS, 0, stream>>>(x, x.n[1] / 8, m);
    else
        amax_kernel<<<blocks, THREADS, 0, stream>>>(x, m);
    return cuda_launched(KERNEL_amax);
}

/* y, z: data NULL if it is not wanted; s: for one or both. */
typedef struct {
    Tensor x, y, z;
    const float *m;
    float *scale[2];
} QuantizeArgs;

static __device__ inline void set_scales(const QuantizeArgs &a, Fp8Scale s)
{
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int k = 0; k < 2; k++)
        if (a.scale[k]) *a.scale[k] = s.scale;
}

/* A tile of 128 x 128 elements by a block. */
template <DType TYPE, DType FROM>
static __global__ void __launch_bounds__(FP8_THREADS)
    quantize_tile_kernel(const __grid_constant__ QuantizeArgs a)
{
    __shared__ Fp8Tile tile;
    const Fp8Scale s = scale_of(TYPE, *a.m);
    const int64_t across = (a.x.n[1] + FP8_SIDE - 1) / FP8_SIDE;
    const int64_t token = blockIdx.x / across * FP8_SIDE, feature = blockIdx.x % across * FP8_SIDE;
    set_scales(a, s);
#pragma unroll
    for (int pass = 0; pass < FP8_PASSES; pass++) {
        const Fp8Piece p = fp8_piece(pass);
        const int64_t i = token + 4 * p.tokens, j = feature + 8 * p.features;
        PackedElements<8> x[4] = {};
        uint2 code[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < a.x.n[0] && j < a.x.n[1])
                x[k] = piece_load<8>(a.x.data, FROM, (i + k) * a.x.stride[0] + j);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float value[8];
            piece_floats(x[k], FROM, value);
            code[k] = fp8_eight<TYPE>(value, s.inverse);
            if (a.y.data && i + k < a.x.n[0] && j < a.x.n[1])
                *(uint2 *)((uint8_t *)a.y.data + (i + k) * a.y.stride[0] + j) = code[k];
        }
        if (a.z.data) fp8_tile_put(tile, p, code);
    }
    if (!a.z.data) return;
    __syncthreads();
    fp8_tile_write(tile, a.z, feature, token);
}

static __device__ inline void quantize_at(const Tensor &y, int64_t i, int64_t j, float scaled)
{
    ((uint8_t *)y.data)[i * y.stride[0] + j * y.stride[1]] =
        isnan(scaled) ? 0x7f : __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, fp8_kind(y.dtype));
}

static __global__ void __launch_bounds__(THREADS)
    quantize_kernel(const __grid_constant__ QuantizeArgs a)
{
    const Fp8Scale s = scale_of(a.y.data ? a.y.dtype : a.z.dtype, *a.m);
    const int64_t n = a.x.n[0] * a.x.n[1], step = (int64_t)gridDim.x * THREADS;
    set_scales(a, s);
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < n; e += step) {
        const int64_t i = e / a.x.n[1], j = e % a.x.n[1];
        const float scaled = matrix_get(a.x, i, j) * s.inverse;
        if (a.y.data) quantize_at(a.y, i, j, scaled);
        if (a.z.data) quantize_at(a.z, j, i, scaled);
    }
}

static bool bytes_fit(const Tensor *t, int64_t align)
{
    return !t->data || (t->stride[1] == 1 && t->stride[0] % align == 0 &&
                        (uintptr_t)t->data % (uintptr_t)align == 0);
}

typedef void (*TileKernel)(QuantizeArgs);

static TileKernel tile_kernel(DType type, DType from)
{
    if (type == E4M3)
        return from == BF16 ? quantize_tile_kernel<E4M3, BF16> : quantize_tile_kernel<E4M3, F32>;
    return from == BF16 ? quantize_tile_kernel<E5M2, BF16> : quantize_tile_kernel<E5M2, F32>;
}

static Err run_quantize(const Call *call, QuantizeArgs a, KernelId id)
{
    a.x = call->in[0];
    a.m = (const float *)call->in[1].data;
    TRY(cuda_begin(call, id));
    if (walk_rows_wide(&a.x) && a.x.n[1] % 8 == 0 && bytes_fit(&a.y, 8) && bytes_fit(&a.z, 4) &&
        tensor_count(&a.x) > 0) {
        const int64_t tiles = blocks_of(a.x.n[0], FP8_SIDE) * blocks_of(a.x.n[1], FP8_SIDE);
        tile_kernel(call->attr.quantize.type,
                    a.x.dtype)<<<(unsigned)tiles, FP8_THREADS, 0, call->queue->stream>>>(a);
    } else {
        const int64_t blocks = max_i64(blocks_of(tensor_count(&a.x), 4 * THREADS), 1);
        quantize_kernel<<<(unsigned)min_i64(blocks, 16 * MAX_BLOCKS), THREADS, 0,
                          call->queue->stream>>>(a);
    }
    return cuda_launched(id);
}

static float *scale_at(const Call *call, int out) { return (float *)call->out[out].data; }

extern "C" Err cuda_quantize(const Call *call)
{
    QuantizeArgs a = {};
    a.y = call->out[0];
    a.scale[0] = scale_at(call, 1);
    return run_quantize(call, a, KERNEL_quantize);
}

extern "C" Err cuda_quantize_turned(const Call *call)
{
    QuantizeArgs a = {};
    a.z = call->out[0];
    a.scale[0] = scale_at(call, 1);
    return run_quantize(call, a, KERNEL_quantize_turned);
}

extern "C" Err cuda_quantize_both(const Call *call)
{
    QuantizeArgs a = {};
    a.y = call->out[0], a.z = call->out[2];
    a.scale[0] = scale_at(call, 1), a.scale[1] = scale_at(call, 3);
    return run_quantize(call, a, KERNEL_quantize_both);
}
