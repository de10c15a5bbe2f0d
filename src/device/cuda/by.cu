/* by.cu -- kernels of delayed scaling: values of 8 bits by a scale that is known before.
 *
 *     quantize_by      x -> y, m, z             rmsnorm_by, swiglu_by, swiglu_dx_by: what those
 *     mark_amax        m -> marks               kernels would store in bf16, never stored
 *     delayed_scales   marks -> scales
 *
 * One pass writes y, its transpose z (fp8.cuh) and the amax m. A value is rounded to the type of x
 * first, so a fused kernel has the bits of the two that it replaces. */
#include "base/math.h"
#include "device/by.h"
#include "device/cuda/fp8.cuh"

enum { THREADS = FP8_THREADS };

/* y, z: data NULL if it is not wanted. in: the operands of the formula. */
typedef struct {
    Tensor in[3], y, z;
    const float *s;
    float *m;
    int64_t rows, width; /* of y */
} ByArgs;

static __device__ inline void add_amax(float most, float *m)
{
    most = group_max<THREADS>(most);
    if (m && threadIdx.x == 0) atomicMax((int *)m, __float_as_int(most));
}

/* The formulas: eight elements of the result at (i, j). */
struct Plain {
    template <DType T> static __device__ void run(const ByArgs &a, int64_t i, int64_t j, float *y)
    {
        piece_floats(piece_load<8>(a.in[0].data, T, i * a.in[0].stride[0] + j), T, y);
    }
};

struct SwigluBy {
    template <DType T> static __device__ void run(const ByArgs &a, int64_t i, int64_t j, float *y)
    {
        float gate[8], up[8];
        piece_floats(piece_load<8>(a.in[0].data, T, i * a.in[0].stride[0] + j), T, gate);
        piece_floats(piece_load<8>(a.in[1].data, T, i * a.in[1].stride[0] + j), T, up);
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[e] = value_round(T, __fdividef(gate[e], 1 + __expf(-gate[e])) * up[e]);
    }
};

template <DType TYPE>
static __device__ inline float put_codes(const ByArgs &a, const float *value, float inverse,
                                         int64_t i, int64_t j, uint2 *code)
{
    float most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) most = fmaxf(most, fabsf(value[e]));
    *code = fp8_eight<TYPE>(value, inverse);
    if (a.y.data) *(uint2 *)((uint8_t *)a.y.data + i * a.y.stride[0] + j) = *code;
    return most;
}

/* A tile of 128 x 128 elements by a block. */
template <typename F, DType TYPE, DType T>
static __global__ void __launch_bounds__(THREADS) by_tile_kernel(const __grid_constant__ ByArgs a)
{
    __shared__ Fp8Tile tile;
    const float inverse = __frcp_rn(*a.s);
    const int64_t across = (a.width + FP8_SIDE - 1) / FP8_SIDE;
    const int64_t token = blockIdx.x / across * FP8_SIDE, feature = blockIdx.x % across * FP8_SIDE;
    float most = 0;
#pragma unroll
    for (int pass = 0; pass < FP8_PASSES; pass++) {
        const Fp8Piece p = fp8_piece(pass);
        const int64_t i = token + 4 * p.tokens, j = feature + 8 * p.features;
        float value[4][8] = {};
        uint2 code[4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < a.rows && j < a.width) F::template run<T>(a, i + k, j, value[k]);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < a.rows && j < a.width)
                most = fmaxf(most, put_codes<TYPE>(a, value[k], inverse, i + k, j, &code[k]));
        if (a.z.data) fp8_tile_put(tile, p, code);
    }
    if (a.z.data) {
        __syncthreads();
        fp8_tile_write(tile, a.z, feature, token);
    }
    add_amax(most, a.m);
}

/* in: dy, gate, up. A tile of dgate, and the same of dup, which is half of y's width further. */
template <DType TYPE, DType T>
static __global__ void __launch_bounds__(THREADS)
    swiglu_dx_tile_kernel(const __grid_constant__ ByArgs a)
{
    __shared__ Fp8Tile tile[2];
    const float inverse = __frcp_rn(*a.s);
    const int64_t half = a.width / 2, across = (half + FP8_SIDE - 1) / FP8_SIDE;
    const int64_t token = blockIdx.x / across * FP8_SIDE, feature = blockIdx.x % across * FP8_SIDE;
    float most = 0;
#pragma unroll
    for (int pass = 0; pass < FP8_PASSES; pass++) {
        const Fp8Piece p = fp8_piece(pass);
        const int64_t i = token + 4 * p.tokens, j = feature + 8 * p.features;
        PackedElements<8> in[4][3] = {};
        uint2 code[2][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int o = 0; o < 3; o++)
                if (i + k < a.rows && j < half)
                    in[k][o] = piece_load<8>(a.in[o].data, T, (i + k) * a.in[o].stride[0] + j);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float dy[8], gate[8], up[8];
            if (i + k >= a.rows || j >= half) continue;
            piece_floats(in[k][0], T, dy);
            piece_floats(in[k][1], T, gate);
            piece_floats(in[k][2], T, up);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float g = gate[e], s = __fdividef(1, 1 + __expf(-g));
                const float dgate = dy[e] * up[e] * s * (1 + g * (1 - s));
                up[e] = value_round(T, dy[e] * g * s);
                gate[e] = value_round(T, dgate);
            }
            most = fmaxf(most, put_codes<TYPE>(a, gate, inverse, i + k, j, &code[0][k]));
            most = fmaxf(most, put_codes<TYPE>(a, up, inverse, i + k, half + j, &code[1][k]));
        }
        if (a.z.data) fp8_tile_put(tile[0], p, code[0]);
        if (a.z.data) fp8_tile_put(tile[1], p, code[1]);
    }
    if (a.z.data) {
        __syncthreads();
        Tensor z = a.z; /* the rows of dgate, then those of dup */
        z.n[0] = half;
        fp8_tile_write(tile[0], z, feature, token);
        z.data = (uint8_t *)z.data + half * z.stride[0];
        fp8_tile_write(tile[1], z, feature, token);
    }
    add_amax(most, a.m);
}

static bool bytes_fit(const Tensor *t, int64_t align)
{
    return !t->data || (t->stride[1] == 1 && t->stride[0] % align == 0 &&
                        (uintptr_t)t->data % (uintptr_t)align == 0);
}

/* True if the tile kernels can run: else the parts run one after the other. */
static bool fits(const ByArgs *a, int n_in, int64_t width)
{
    for (int i = 0; i < n_in; i++)
        if (!walk_rows_wide(&a->in[i]) || a->in[i].dtype != a->in[0].dtype) return false;
    return width % 8 == 0 && a->rows > 0 && width > 0 && bytes_fit(&a->y, 8) && bytes_fit(&a->z, 4);
}

static ByArgs args_of(const Call *call, int n_in, int m)
{
    ByArgs a = {};
    for (int i = 0; i < n_in; i++) a.in[i] = call->in[i];
    a.y = call->out[0];
    if (call->n_out > m + 1) a.z = call->out[m + 1];
    a.s = (const float *)call->in[n_in].data;
    a.m = (float *)call->out[m].data;
    a.rows = a.y.n[0];
    a.width = a.y.n[1];
    return a;
}

typedef void (*ByKernel)(ByArgs);

template <typename F> static ByKernel tile_kernel(DType type, DType from)
{
    if (type == E4M3)
        return from == BF16 ? by_tile_kernel<F, E4M3, BF16> : by_tile_kernel<F, E4M3, F32>;
    return from == BF16 ? by_tile_kernel<F, E5M2, BF16> : by_tile_kernel<F, E5M2, F32>;
}

static ByKernel dx_kernel(DType type, DType from)
{
    if (type == E4M3)
        return from == BF16 ? swiglu_dx_tile_kernel<E4M3, BF16> : swiglu_dx_tile_kernel<E4M3, F32>;
    return from == BF16 ? swiglu_dx_tile_kernel<E5M2, BF16> : swiglu_dx_tile_kernel<E5M2, F32>;
}

static Err launch_tiles(const Call *call, ByKernel kernel, const ByArgs &a, int64_t width)
{
    const int64_t tiles = blocks_of(a.rows, FP8_SIDE) * blocks_of(width, FP8_SIDE);
    cudaStream_t stream = call->queue->stream;
    if (a.m) CUDA_TRY(cudaMemsetAsync(a.m, 0, sizeof *a.m, stream));
    kernel<<<(unsigned)tiles, THREADS, 0, stream>>>(a);
    return OK;
}

/* ---- any strides and widths ---- */

static __global__ void __launch_bounds__(THREADS) by_any_kernel(const __grid_constant__ ByArgs a)
{
    const Tensor &x = a.in[0];
    const DType type = a.y.data ? a.y.dtype : a.z.dtype;
    const int64_t n = a.rows * a.width, step = (int64_t)gridDim.x * THREADS;
    const float inverse = __frcp_rn(*a.s);
    float most = 0;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < n; e += step) {
        const int64_t i = e / a.width, j = e % a.width;
        const float value = value_get(x.data, x.dtype, i * x.stride[0] + j * x.stride[1]);
        const uint8_t code =
            isnan(value) ? 0x7f
                         : __nv_cvt_float_to_fp8(value * inverse, __NV_SATFINITE, fp8_kind(type));
        most = fmaxf(most, fabsf(value));
        if (a.y.data) ((uint8_t *)a.y.data)[i * a.y.stride[0] + j * a.y.stride[1]] = code;
        if (a.z.data) ((uint8_t *)a.z.data)[j * a.z.stride[0] + i * a.z.stride[1]] = code;
    }
    add_amax(most, a.m);
}

static Err run_plain(const Call *call, const ByArgs &a)
{
    cudaStream_t stream = call->queue->stream;
    const int64_t blocks = min_i64(blocks_of(a.rows * a.width, 4 * THREADS), 16384);
    if (fits(&a, 1, a.width))
        return launch_tiles(call, tile_kernel<Plain>(call->attr.by.type, a.in[0].dtype), a,
                            a.width);
    if (a.m) CUDA_TRY(cudaMemsetAsync(a.m, 0, sizeof *a.m, stream));
    if (blocks > 0) by_any_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(a);
    return OK;
}

extern "C" Err cuda_quantize_by(const Call *call)
{
    TRY(cuda_begin(call, KERNEL_quantize_by));
    TRY(run_plain(call, args_of(call, 1, 1)));
    return cuda_launched(KERNEL_quantize_by);
}

extern "C" Err cuda_quantize_by_turned(const Call *call)
{
    ByArgs a = {};
    a.in[0] = call->in[0];
    a.z = call->out[0];
    a.s = (const float *)call->in[1].data;
    a.rows = a.z.n[1];
    a.width = a.z.n[0];
    TRY(cuda_begin(call, KERNEL_quantize_by_turned));
    TRY(run_plain(call, a));
    return cuda_launched(KERNEL_quantize_by_turned);
}

/* The kernel `make` into scratch, then quantize_by. */
static Err run_parts(const Call *call, ByForm form, Kernel make)
{
    void *scratch;
    TRY(cuda_scratch(call->queue, by_scratch_bytes(call), &scratch));
    return by_parts(call, form, scratch, make, cuda_quantize_by);
}

extern "C" Err cuda_swiglu_by(const Call *call)
{
    const ByArgs a = args_of(call, 2, 1);
    TRY(cuda_begin(call, KERNEL_swiglu_by));
    if (!fits(&a, 2, a.width)) return run_parts(call, by_swiglu, cuda_swiglu);
    TRY(launch_tiles(call, tile_kernel<SwigluBy>(call->attr.by.type, a.in[0].dtype), a, a.width));
    return cuda_launched(KERNEL_swiglu_by);
}

extern "C" Err cuda_swiglu_dx_by(const Call *call)
{
    const ByArgs a = args_of(call, 3, 1);
    TRY(cuda_begin(call, KERNEL_swiglu_dx_by));
    if (!fits(&a, 3, a.width / 2)) return run_parts(call, by_swiglu_dx, cuda_swiglu_dx);
    TRY(launch_tiles(call, dx_kernel(call->attr.by.type, a.in[0].dtype), a, a.width / 2));
    return cuda_launched(KERNEL_swiglu_dx_by);
}

/* ---- rmsnorm ---- */

enum { NORM_TOKENS = 32, NORM_FEATURES = 512, NORM_WORDS = NORM_TOKENS / 4 };

typedef struct {
    ByArgs by; /* in: x, w */
    Tensor rstd;
    float eps;
} NormByArgs;

/* rstd of a row, by a warp; a row whose squares overflow f32 again in f64. */
template <DType T>
static __device__ inline float row_rstd(const Tensor &x, int64_t row, int64_t width, float eps)
{
    const int lane = threadIdx.x % 32;
    float sum = 0;
    for (int64_t j = 8 * lane; j < width; j += 256) {
        float v[8];
        piece_floats(piece_load<8>(x.data, T, row * x.stride[0] + j), T, v);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf(v[e], v[e], sum);
    }
    sum = warp_sum(sum);
    if (sum < INFINITY) return rsqrtf(fmaf(sum, 1 / (float)width, eps));
    double square = 0;
    for (int64_t j = lane; j < width; j += 32) {
        const double v = (double)value_get(x.data, T, row * x.stride[0] + j);
        square += v * v;
    }
    return (float)(1 / sqrt(warp_sum(square) / (double)width + (double)eps));
}

/* 32 rows by a block: their statistics, then codes, 512 features at a time; the second read of x is
 * from L2. */
template <DType TYPE, DType T>
static __global__ void __launch_bounds__(THREADS)
    rmsnorm_by_kernel(const __grid_constant__ NormByArgs n)
{
    __shared__ uint32_t tile[NORM_FEATURES * NORM_WORDS];
    __shared__ float rstd[NORM_TOKENS];
    const ByArgs &a = n.by;
    const int64_t token = (int64_t)blockIdx.x * NORM_TOKENS;
    const float inverse = __frcp_rn(*a.s);
    float most = 0;
    for (int r = threadIdx.x / 32; r < NORM_TOKENS && token + r < a.rows; r += THREADS / 32) {
        const float value = row_rstd<T>(a.in[0], token + r, a.width, n.eps);
        if (threadIdx.x % 32 != 0) continue;
        rstd[r] = value;
        ((float *)n.rstd.data)[(token + r) * n.rstd.stride[0]] = value;
    }
    __syncthreads();
    for (int64_t from = 0; from < a.width; from += NORM_FEATURES) {
#pragma unroll
        for (int pass = 0; pass < 2; pass++) {
            const int octet = threadIdx.x % 64, quad = threadIdx.x / 64 + 4 * pass;
            const int64_t i = token + 4 * quad, j = from + 8 * octet;
            PackedElements<8> x[4] = {};
            uint2 code[4] = {};
            float w[8] = {};
            if (j < a.width) piece_floats(piece_load<8>(a.in[1].data, T, j), T, w);
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (i + k < a.rows && j < a.width)
                    x[k] = piece_load<8>(a.in[0].data, T, (i + k) * a.in[0].stride[0] + j);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float v[8];
                if (i + k >= a.rows || j >= a.width) continue;
                piece_floats(x[k], T, v);
#pragma unroll
                for (int e = 0; e < 8; e++) v[e] = value_round(T, v[e] * rstd[4 * quad + k] * w[e]);
                most = fmaxf(most, put_codes<TYPE>(a, v, inverse, i + k, j, &code[k]));
            }
            if (!a.z.data) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t row[4], word[4];
#pragma unroll
                for (int k = 0; k < 4; k++) row[k] = half ? code[k].y : code[k].x;
                transpose_bytes(row, word);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    tile[(8 * octet + 4 * half + e) * NORM_WORDS + (quad ^ octet % NORM_WORDS)] =
                        word[e];
            }
        }
        if (!a.z.data) continue;
        __syncthreads();
        for (int e = threadIdx.x; e < NORM_FEATURES * NORM_WORDS; e += THREADS) {
            const int feature = e / NORM_WORDS, quad = e % NORM_WORDS;
            const int64_t left = a.rows - token - 4 * quad;
            const uint32_t word = tile[feature * NORM_WORDS + (quad ^ feature / 8 % NORM_WORDS)];
            uint8_t *to = (uint8_t *)a.z.data + (from + feature) * a.z.stride[0] + token + 4 * quad;
            if (from + feature >= a.width || left <= 0) continue;
            if (left >= 4) {
                *(uint32_t *)to = word;
            } else {
                for (int k = 0; k < left; k++) to[k] = (uint8_t)(word >> 8 * k);
            }
        }
        __syncthreads();
    }
    add_amax(most, a.m);
}

typedef void (*NormByKernel)(NormByArgs);

static NormByKernel norm_kernel(DType type, DType from)
{
    if (type == E4M3)
        return from == BF16 ? rmsnorm_by_kernel<E4M3, BF16> : rmsnorm_by_kernel<E4M3, F32>;
    return from == BF16 ? rmsnorm_by_kernel<E5M2, BF16> : rmsnorm_by_kernel<E5M2, F32>;
}

/* In deterministic mode the sums of a row must be those of rmsnorm, which recomputation runs. */
extern "C" Err cuda_rmsnorm_by(const Call *call)
{
    NormByArgs n = {};
    n.by = args_of(call, 2, 2);
    n.rstd = call->out[1];
    n.eps = (float)call->attr.by.eps;
    ByArgs x = n.by;
    TRY(cuda_begin(call, KERNEL_rmsnorm_by));
    const bool vector = n.by.in[1].stride[0] == 1 && (uintptr_t)n.by.in[1].data % 16 == 0 &&
                        n.by.in[1].dtype == n.by.in[0].dtype;
    if (!call->queue->context->any_order || !vector || !fits(&x, 1, x.width))
        return run_parts(call, by_rmsnorm, cuda_rmsnorm);
    CUDA_TRY(cudaMemsetAsync(n.by.m, 0, sizeof *n.by.m, call->queue->stream));
    norm_kernel(call->attr.by.type, n.by.in[0].dtype)<<<(unsigned)blocks_of(n.by.rows, NORM_TOKENS),
                                                        THREADS, 0, call->queue->stream>>>(n);
    return cuda_launched(KERNEL_rmsnorm_by);
}
