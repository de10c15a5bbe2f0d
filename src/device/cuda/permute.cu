/* permute.cu -- rows of tokens to the rows of their experts, and back, and the gradient of gates.
 *
 * A thread has W adjacent elements of a row: 8 if all rows are contiguous and aligned, else 1. */
#include "device/cuda/value.cuh"

enum { THREADS = 256, MAX_LEVELS = 11, MAX_UNROLLED = 8 };

typedef struct {
    Tensor x, at, gate, y, dgate; /* gate: data NULL if there is none */
    int64_t width;
} PermuteArgs;

static __device__ inline int32_t row_of(const PermuteArgs &p, int64_t t, int64_t k)
{
    return ((const int32_t *)p.at.data)[t * p.at.stride[0] + k * p.at.stride[1]];
}

static __device__ inline float gate_of(const PermuteArgs &p, int64_t t, int64_t k)
{
    if (!p.gate.data) return 1;
    return value_get(p.gate.data, p.gate.dtype, t * p.gate.stride[0] + k * p.gate.stride[1]);
}

template <int W>
static __device__ inline PackedElements<W> row_piece(const Tensor &t, int64_t row, int64_t i)
{
    return piece_load<W>(t.data, t.dtype, row * t.stride[0] + i * t.stride[1]);
}

template <int W>
static __global__ void __launch_bounds__(THREADS)
    permute_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x, choices = p.at.n[1];
    for (int64_t i = threadIdx.x * W; i < p.width; i += THREADS * W) {
        float x[W], y[W];
        piece_floats<W>(row_piece<W>(p.x, t, i), p.x.dtype, x);
#pragma unroll 4
        for (int64_t k = 0; k < choices; k++) {
            const int32_t row = row_of(p, t, k);
            const float gate = gate_of(p, t, k);
#pragma unroll
            for (int e = 0; e < W; e++) y[e] = gate * x[e];
            if (row >= 0)
                piece_store<W>(p.y.data, p.y.dtype, row * p.y.stride[0] + i * p.y.stride[1], y);
        }
    }
}

extern "C" Err cuda_permute(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_permute));
    p.x = call->in[0], p.at = call->in[1], p.y = call->out[0], p.width = p.x.n[1];
    if (call->n_in > 2) p.gate = call->in[2];
    if (tensor_count(&p.x) == 0) return OK;
    const unsigned blocks = (unsigned)p.x.n[0];
    if (wide_rows(&p.x) && wide_rows(&p.y))
        permute_kernel<WIDE_PIECE><<<blocks, THREADS, 0, call->queue->stream>>>(p);
    else
        permute_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_permute);
}

/* Pairwise over choices, as on device ref: sum[level] waits for its pair. */
static __global__ void __launch_bounds__(THREADS)
    unpermute_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x, choices = p.at.n[1];
    for (int64_t i = threadIdx.x; i < p.width; i += THREADS) {
        float sum[MAX_LEVELS];
        for (int64_t k = 0; k < choices; k++) {
            const int32_t row = row_of(p, t, k);
            float x = row < 0
                          ? 0
                          : gate_of(p, t, k) * value_get(p.y.data, p.y.dtype,
                                                         row * p.y.stride[0] + i * p.y.stride[1]);
            int level = 0;
            for (; k >> level & 1; level++) x += sum[level];
            sum[level] = x;
        }
        float all = 0;
        for (int level = 0; level < MAX_LEVELS; level++)
            if (choices >> level & 1) all += sum[level];
        value_set(p.x.data, p.x.dtype, t * p.x.stride[0] + i * p.x.stride[1], all);
    }
}

/* The same sums for K choices, with all rows in flight together. */
template <int K>
static __device__ inline void sum_pairs(const float (&gate)[K],
                                        const PackedElements<WIDE_PIECE> (&piece)[K], DType dtype,
                                        float (&all)[WIDE_PIECE])
{
    enum { LEVELS = 4 };
    float sum[LEVELS][WIDE_PIECE];
#pragma unroll
    for (int k = 0; k < K; k++) {
        float x[WIDE_PIECE];
        piece_floats<WIDE_PIECE>(piece[k], dtype, x);
#pragma unroll
        for (int e = 0; e < WIDE_PIECE; e++) x[e] *= gate[k];
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
#pragma unroll
            for (int e = 0; e < WIDE_PIECE; e++) {
                if ((k + 1) % (2 << level) == 0)
                    x[e] += sum[level][e];
                else if ((k + 1) % (1 << level) == 0)
                    sum[level][e] = x[e];
            }
    }
#pragma unroll
    for (int level = 0; level < LEVELS; level++)
#pragma unroll
        for (int e = 0; e < WIDE_PIECE; e++)
            if (K >> level & 1) all[e] += sum[level][e];
}

template <int K>
static __global__ void __launch_bounds__(THREADS)
    unpermute_wide_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t t = blockIdx.x;
    int32_t row[K];
    float gate[K];
#pragma unroll
    for (int k = 0; k < K; k++) row[k] = row_of(p, t, k), gate[k] = gate_of(p, t, k);
    for (int64_t i = threadIdx.x * WIDE_PIECE; i < p.width; i += THREADS * WIDE_PIECE) {
        PackedElements<WIDE_PIECE> piece[K] = {};
        float all[WIDE_PIECE] = {};
#pragma unroll
        for (int k = 0; k < K; k++)
            if (row[k] >= 0) piece[k] = row_piece<WIDE_PIECE>(p.y, row[k], i);
        sum_pairs<K>(gate, piece, p.y.dtype, all);
        piece_store<WIDE_PIECE>(p.x.data, p.x.dtype, t * p.x.stride[0] + i, all);
    }
}

typedef void (*PermuteKernel)(PermuteArgs);

static PermuteKernel unpermute_of(const PermuteArgs *p)
{
    static const PermuteKernel wide[MAX_UNROLLED] = {
        unpermute_wide_kernel<1>, unpermute_wide_kernel<2>, unpermute_wide_kernel<3>,
        unpermute_wide_kernel<4>, unpermute_wide_kernel<5>, unpermute_wide_kernel<6>,
        unpermute_wide_kernel<7>, unpermute_wide_kernel<8>};
    const int64_t choices = p->at.n[1];
    const bool fits =
        choices > 0 && choices <= MAX_UNROLLED && wide_rows(&p->x) && wide_rows(&p->y);
    return fits ? wide[choices - 1] : unpermute_kernel;
}

extern "C" Err cuda_unpermute(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_unpermute));
    p.at = call->in[0], p.y = call->in[1], p.x = call->out[0], p.width = p.x.n[1];
    if (call->n_in > 2) p.gate = call->in[2];
    if (tensor_count(&p.x) == 0) return OK;
    unpermute_of(&p)<<<(unsigned)p.x.n[0], THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_unpermute);
}

/* A warp per choice. */
template <int W>
static __global__ void __launch_bounds__(THREADS)
    dgate_kernel(const __grid_constant__ PermuteArgs p)
{
    const int64_t i = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t t = i / p.at.n[1], k = i % p.at.n[1];
    if (t >= p.at.n[0]) return;
    const int32_t row = row_of(p, t, k);
    float sum = 0;
#pragma unroll 4
    for (int64_t from = threadIdx.x % 32 * W; row >= 0 && from < p.width; from += 32 * W) {
        float x[W], y[W];
        piece_floats<W>(row_piece<W>(p.x, t, from), p.x.dtype, x);
        piece_floats<W>(row_piece<W>(p.y, row, from), p.y.dtype, y);
#pragma unroll
        for (int e = 0; e < W; e++) sum += x[e] * y[e];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        value_set(p.dgate.data, p.dgate.dtype, t * p.dgate.stride[0] + k * p.dgate.stride[1], sum);
}

extern "C" Err cuda_permute_dgate(const Call *call)
{
    PermuteArgs p = {};
    TRY(cuda_begin(call, KERNEL_permute_dgate));
    p.x = call->in[0], p.at = call->in[1], p.y = call->in[2], p.dgate = call->out[0];
    p.width = p.x.n[1];
    if (tensor_count(&p.dgate) == 0) return OK;
    const unsigned blocks = (unsigned)blocks_of(tensor_count(&p.dgate), THREADS / 32);
    if (wide_rows(&p.x) && wide_rows(&p.y))
        dgate_kernel<WIDE_PIECE><<<blocks, THREADS, 0, call->queue->stream>>>(p);
    else
        dgate_kernel<1><<<blocks, THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_permute_dgate);
}
