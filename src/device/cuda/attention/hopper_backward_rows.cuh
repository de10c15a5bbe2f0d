/* hopper_backward_rows.cuh -- the pass before the backward kernel over the queries
 * (hopper_backward_passes.cu): writes ranges, lse and delta of each row, clears the sums of dq. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_ROWS_CUH
#define DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_ROWS_CUH

#include "device/cuda/attention/hopper_backward.cuh"

enum { THREADS = 256, ROW_THREADS = 8, ROWS = THREADS / ROW_THREADS };

/* The key ranges of the rows of a tile, and their hull. */
template <int BM> static __device__ inline void tile_ranges(const BackwardArgs &args, int tile)
{
    __shared__ BlockHull part[BM];
    const int row = tile * BM + threadIdx.x;
    if (threadIdx.x < BM) {
        const int4 r = row_ranges(args.a, row);
        part[threadIdx.x] = row_hull(args.a, row, r);
        args.range[row] = make_int4(r.x, max(r.y - r.x, 0), r.z, max(r.w - r.z, 0));
    }
    for (int step = BM / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step)
            part[threadIdx.x] = hull_join(part[threadIdx.x], part[threadIdx.x + step]);
    }
    if (threadIdx.x == 0) args.hull[tile] = part[0];
}

/* Where delta comes from: it is given; from o in words of eight bf16; from any o. */
typedef enum { DELTA_GIVEN, DELTA_WORDS, DELTA_ANY } DeltaFrom;

static __device__ inline float words_product(const uint4 &x, const uint4 &y)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += bf16_low(a[i]) * bf16_low(b[i]) + bf16_high(a[i]) * bf16_high(b[i]);
    return sum;
}

/* The parts of delta that a thread sums: of every ROWS-th row, every eighth piece of channels. All
 * loads come first. */
template <class B>
static __device__ inline void deltas_of_words(const Attention &a, int row, int head,
                                              float (&delta)[B::BM / ROWS])
{
    uint4 x[B::BM / ROWS][B::BOXES], y[B::BM / ROWS][B::BOXES];
#pragma unroll
    for (int i = 0; i < B::BM / ROWS; i++)
#pragma unroll
        for (int p = 0; p < B::BOXES; p++) {
            const int at = row + i * ROWS, c = 64 * p + threadIdx.x % ROW_THREADS * 8;
            x[i][p] = y[i][p] = make_uint4(0, 0, 0, 0);
            if (at >= a.t) continue;
            x[i][p] = __ldg(
                (const uint4 *)((const bf16 *)a.dout.data + row_offset(a.dout, at, head) + c));
            y[i][p] =
                __ldg((const uint4 *)((const bf16 *)a.o.data + row_offset(a.o, at, head) + c));
        }
#pragma unroll
    for (int i = 0; i < B::BM / ROWS; i++) {
        delta[i] = 0;
#pragma unroll
        for (int p = 0; p < B::BOXES; p++) delta[i] += words_product(x[i][p], y[i][p]);
    }
}

static __device__ inline float delta_of_any(const Attention &a, int row, int head)
{
    float sum = 0;
    for (int i = threadIdx.x % ROW_THREADS; i < a.c && row < a.t; i += ROW_THREADS)
        sum += value_get(a.dout.data, a.dout.dtype, row_offset(a.dout, row, head) + i) *
               value_get(a.o.data, a.o.dtype, row_offset(a.o, row, head) + i * a.o.stride[2]);
    return sum;
}

/* A block has a tile of queries of one head. A row past the end or without keys weighs 0: its lse
 * is infinite. */
template <class B, DeltaFrom FROM>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(const __grid_constant__ BackwardArgs args)
{
    const Attention &a = args.a;
    const int tile = blockIdx.x / a.h, head = blockIdx.x % a.h;
    const int first = threadIdx.x / ROW_THREADS, row = tile * B::BM + first;
    const int64_t at = (int64_t)head * args.query_tiles + tile;
    float4 *sum = (float4 *)(args.sum + at * 2 * DQ_PART);
    float delta[B::BM / ROWS];
    if (FROM == DELTA_WORDS) deltas_of_words<B>(a, row, head, delta);
#pragma unroll
    for (int i = 0; i < 2 * DQ_PART / 4 / THREADS && args.sum; i++)
        sum[i * THREADS + threadIdx.x] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < B::BM / ROWS; i++) {
        const int r = row + i * ROWS;
        float *to = args.row + at * 2 * B::BM + first + i * ROWS, lse = -INFINITY;
        if (FROM == DELTA_ANY) delta[i] = delta_of_any(a, r, head);
        for (int step = ROW_THREADS / 2; step > 0 && FROM != DELTA_GIVEN; step /= 2)
            delta[i] += __shfl_xor_sync(~0u, delta[i], step);
        if (threadIdx.x % ROW_THREADS > 0) continue;
        if (r < a.t) lse = ((const float *)a.lse.data)[row_offset(a.lse, r, head)];
        if (FROM == DELTA_GIVEN)
            delta[i] = r < a.t ? ((const float *)a.o.data)[row_offset(a.o, r, head)] : 0;
        to[0] = lse == -INFINITY ? INFINITY : lse * LOG2E;
        to[B::BM] = lse == -INFINITY ? 0 : delta[i];
    }
    if (head == 0) tile_ranges<B::BM>(args, tile);
}

#endif
