/* column_fold.cuh -- the second stage of sums over rows: strips of rows were summed apart, into rows
 * of f32 in scratch, and are folded here in their order, and added to what is kept. From sm_90 on the
 * fold is launched while the first stage runs, and waits for its end on the card. */
#ifndef DEVICE_CUDA_COLUMN_FOLD_CUH
#define DEVICE_CUDA_COLUMN_FOLD_CUH

#include "device/cuda/value.cuh"

/* Few columns a block, so that all SMs have some; all strips of a run are asked for at once. */
enum { FOLD_COLUMNS = 8, FOLD_RUNS = 32, FOLD_AHEAD = 9 };

typedef struct {
    const float *part; /* [strips, sums, width] */
    int strips, sums;
    int64_t width;
    Tensor out[2]; /* [sums] */
    float keep[2];
} ColumnFold;

/* In the first stage: the fold may take the place of blocks that are done. */
static __device__ inline void fold_may_start()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* A column's strips in runs, a thread each; the runs' sums are folded in order. */
static __global__ void __launch_bounds__(FOLD_COLUMNS *FOLD_RUNS)
    column_fold_kernel(const __grid_constant__ ColumnFold f)
{
    const int64_t j = (int64_t)blockIdx.x * FOLD_COLUMNS + threadIdx.x;
    const int which = blockIdx.y, each = (f.strips + FOLD_RUNS - 1) / FOLD_RUNS;
    const int from = threadIdx.y * each, to = min(from + each, f.strips);
    __shared__ float fold[FOLD_RUNS][FOLD_COLUMNS];
    float sum = 0;
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    for (int s = from; s < to && j < f.width; s += FOLD_AHEAD) {
        float x[FOLD_AHEAD];
#pragma unroll
        for (int k = 0; k < FOLD_AHEAD; k++)
            x[k] = s + k < to ? f.part[((int64_t)(s + k) * f.sums + which) * f.width + j] : 0;
#pragma unroll
        for (int k = 0; k < FOLD_AHEAD; k++) sum += x[k];
    }
    fold[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || j >= f.width) return;
    for (int k = 1; k < FOLD_RUNS; k++) sum += fold[k][threadIdx.x];
    const Tensor &out = f.out[which];
    value_keep(out.data, out.dtype, j * out.stride[0], f.keep[which], sum);
}

/* Right behind the first stage. */
static Err column_fold(const ColumnFold &f, const DeviceQueue *q)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks_of(f.width, FOLD_COLUMNS), (unsigned)f.sums);
    config.blockDim = dim3(FOLD_COLUMNS, FOLD_RUNS);
    config.stream = q->stream;
    config.attrs = &early;
    config.numAttrs = q->context->capability >= 90 ? 1 : 0;
    CUDA_TRY(cudaLaunchKernelEx(&config, column_fold_kernel, f));
    return OK;
}

#endif
