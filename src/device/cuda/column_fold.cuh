/* column_fold.cuh -- the second stage of sums over rows: strips of rows were summed apart, into rows
 * of f32 in scratch, and are folded here in their order, and added to what is kept. */
#ifndef DEVICE_CUDA_COLUMN_FOLD_CUH
#define DEVICE_CUDA_COLUMN_FOLD_CUH

#include "device/cuda/value.cuh"

enum { FOLD_COLUMNS = 32, FOLD_RUNS = 32 };

typedef struct {
    const float *part; /* [strips, sums, width] */
    int strips, sums;
    int64_t width;
    Tensor out[2]; /* [sums] */
    float keep[2];
} ColumnFold;

/* A column's strips in runs, a thread each; the runs' sums are folded in order. */
static __global__ void __launch_bounds__(FOLD_COLUMNS *FOLD_RUNS)
    column_fold_kernel(const __grid_constant__ ColumnFold f)
{
    const int64_t j = (int64_t)blockIdx.x * FOLD_COLUMNS + threadIdx.x;
    const int which = blockIdx.y, each = (f.strips + FOLD_RUNS - 1) / FOLD_RUNS;
    const int from = threadIdx.y * each, to = min(from + each, f.strips);
    __shared__ float fold[FOLD_RUNS][FOLD_COLUMNS];
    float sum = 0;
    if (j < f.width)
#pragma unroll 4
        for (int s = from; s < to; s++) sum += f.part[((int64_t)s * f.sums + which) * f.width + j];
    fold[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || j >= f.width) return;
    for (int k = 1; k < FOLD_RUNS; k++) sum += fold[k][threadIdx.x];
    const Tensor &out = f.out[which];
    value_keep(out.data, out.dtype, j * out.stride[0], f.keep[which], sum);
}

static void column_fold(const ColumnFold &f, cudaStream_t stream)
{
    const dim3 grid((unsigned)blocks_of(f.width, FOLD_COLUMNS), (unsigned)f.sums);
    column_fold_kernel<<<grid, dim3(FOLD_COLUMNS, FOLD_RUNS), 0, stream>>>(f);
}

#endif
