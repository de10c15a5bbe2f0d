/* column_fold.cuh -- the second stage of column sums. The first stage has summed strips of rows
 * into rows of f32 in scratch. This stage adds them in their order, to keep times the output. It is
 * launched while the first stage runs (pdl.cuh). */
#ifndef DEVICE_CUDA_COLUMN_FOLD_CUH
#define DEVICE_CUDA_COLUMN_FOLD_CUH

#include "device/cuda/pdl.cuh"
#include "device/cuda/value.cuh"

/* Few columns per block, so that every SM has some; all strips of a run are prefetched at once. */
enum { FOLD_COLUMNS = 8, FOLD_RUNS = 32, FOLD_PREFETCH = 9 };

typedef struct {
    const float *part; /* [strips, sums, width] */
    int strips, sums;
    int64_t width;
    Tensor out[3]; /* [sums] */
    float keep[3];
} ColumnFold;

/* A thread sums one run of a column's strips; the runs' sums are then added in order. */
static __global__ void __launch_bounds__(FOLD_COLUMNS *FOLD_RUNS)
    column_fold_kernel(const __grid_constant__ ColumnFold f)
{
    const int64_t j = (int64_t)blockIdx.x * FOLD_COLUMNS + threadIdx.x;
    const int which = blockIdx.y, each = (f.strips + FOLD_RUNS - 1) / FOLD_RUNS;
    const int from = threadIdx.y * each, to = min(from + each, f.strips);
    __shared__ float fold[FOLD_RUNS][FOLD_COLUMNS];
    float sum = 0;
    pdl_wait();
    for (int s = from; s < to && j < f.width; s += FOLD_PREFETCH) {
        float x[FOLD_PREFETCH];
#pragma unroll
        for (int k = 0; k < FOLD_PREFETCH; k++)
            x[k] = s + k < to ? f.part[((int64_t)(s + k) * f.sums + which) * f.width + j] : 0;
#pragma unroll
        for (int k = 0; k < FOLD_PREFETCH; k++) sum += x[k];
    }
    fold[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || j >= f.width) return;
    for (int k = 1; k < FOLD_RUNS; k++) sum += fold[k][threadIdx.x];
    const Tensor &out = f.out[which];
    value_keep(out.data, out.dtype, j * out.stride[0], f.keep[which], sum);
}

/* Launched right after the first stage, which may call pdl_trigger. */
static Err column_fold(const ColumnFold &f, const DeviceQueue *q)
{
    const LaunchShape shape = {dim3((unsigned)blocks_of(f.width, FOLD_COLUMNS), (unsigned)f.sums),
                               dim3(FOLD_COLUMNS, FOLD_RUNS), 0};
    return pdl_launch(column_fold_kernel, shape, q, f);
}

#endif
