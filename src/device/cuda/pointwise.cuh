/* pointwise.cuh -- one loop for all kernels whose outputs at an element depend on that element
 * only.
 *
 * A formula F declares IN and OUT, the tensors that it reads and writes; it does both with those
 * that it updates. `run` gets its numbers as floats, computed on the host in f64 and rounded
 * once. */
#ifndef DEVICE_CUDA_POINTWISE_CUH
#define DEVICE_CUDA_POINTWISE_CUH

#include "device/cuda/value.cuh"

enum { POINT_THREADS = 256, MAX_POINT_NUMBERS = 8 };

typedef struct {
    float number[MAX_POINT_NUMBERS];
} PointNumbers;

/* Offsets, in elements, of a step of the walk in the first N tensors. */
template <int N>
static __device__ inline void walk_at(const ElementWalk &w, int64_t step, int64_t *at)
{
    if (w.ndim == 1) { /* one run: no division */
#pragma unroll
        for (int i = 0; i < N; i++) at[i] = step * w.stride[i][0];
        return;
    }
    uint32_t left = (uint32_t)step;
#pragma unroll
    for (int i = 0; i < N; i++) at[i] = 0;
    for (int d = w.ndim - 1; d >= 0; d--) {
        const uint32_t index = left % w.n[d];
        left /= w.n[d];
#pragma unroll
        for (int i = 0; i < N; i++) at[i] += index * w.stride[i][d];
    }
}

/* Tensors of the walk: inputs, then outputs. With F::UPDATE the outputs are also read. */
template <class F, int W>
static __global__ void __launch_bounds__(POINT_THREADS)
    point_kernel(const __grid_constant__ ElementWalk w,
                 const __grid_constant__ PointNumbers numbers)
{
    const int64_t step = (int64_t)blockIdx.x * POINT_THREADS + threadIdx.x;
    const int all = F::IN + F::OUT;
    const int reads = F::UPDATE ? all : F::IN;
    if (step >= w.count) return;
    int64_t at[all];
    PackedElements<W> piece[reads + 1]; /* one more: a formula may read nothing */
    float x[all][W];
    walk_at<all>(w, step, at);
#pragma unroll
    for (int i = 0; i < reads; i++) piece[i] = piece_load<W>(w.at[i], w.dtype[i], at[i]);
#pragma unroll
    for (int i = 0; i < reads; i++) piece_floats(piece[i], w.dtype[i], x[i]);
#pragma unroll
    for (int e = 0; e < W; e++) {
        float v[all];
#pragma unroll
        for (int i = 0; i < all; i++) v[i] = i < reads ? x[i][e] : 0;
        F::run(numbers, v, v + F::IN);
#pragma unroll
        for (int i = 0; i < all; i++) x[i][e] = v[i];
    }
#pragma unroll
    for (int i = F::IN; i < all; i++) piece_store<W>(w.at[i], w.dtype[i], at[i], x[i]);
}

/* Local. Launches a formula over the tensors of a call. */
template <class F> static Err point_run(const Call *call, KernelId id, const PointNumbers &numbers)
{
    ElementWalk w;
    TRY(cuda_begin(call, id));
    TRY(walk_call(call, true, &w));
    if (w.count == 0) return OK;
    const unsigned blocks = (unsigned)blocks_of(w.count, POINT_THREADS);
    if (w.width == WALK_WIDE)
        point_kernel<F, WALK_WIDE><<<blocks, POINT_THREADS, 0, call->queue->stream>>>(w, numbers);
    else
        point_kernel<F, 1><<<blocks, POINT_THREADS, 0, call->queue->stream>>>(w, numbers);
    return cuda_launched(id);
}

#endif
