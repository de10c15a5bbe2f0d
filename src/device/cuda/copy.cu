/* copy.cu -- bytes as they are, between any strides: integers and NaN payloads too.
 *
 * One run on both sides is the driver's own copy; else elements of 2, 4 or 8 bytes, and 16 bytes at
 * a time where both sides' rows allow. */
#include "device/cuda/pointwise.cuh"

template <typename T>
static __global__ void __launch_bounds__(POINT_THREADS)
    copy_kernel(const __grid_constant__ Walk w, int64_t bytes)
{
    const int64_t step = (int64_t)blockIdx.x * POINT_THREADS + threadIdx.x;
    int64_t at[2];
    if (step >= w.count) return;
    walk_at<2>(w, step, at);
    *(T *)(w.at[1] + at[1] * bytes) = *(const T *)(w.at[0] + at[0] * bytes);
}

/* Elements of eight bytes in steps of eight would be 64 bytes: they go one by one. */
static Err launch(const Call *call, const Walk *w, size_t bytes)
{
    const unsigned blocks = (unsigned)blocks_of(w->count, POINT_THREADS);
    const cudaStream_t stream = call->queue->stream;
    if (w->width == WALK_WIDE && bytes == 2)
        copy_kernel<uint4><<<blocks, POINT_THREADS, 0, stream>>>(*w, 2);
    else if (bytes == 2)
        copy_kernel<uint16_t><<<blocks, POINT_THREADS, 0, stream>>>(*w, 2);
    else if (bytes == 4)
        copy_kernel<uint32_t><<<blocks, POINT_THREADS, 0, stream>>>(*w, 4);
    else
        copy_kernel<uint2><<<blocks, POINT_THREADS, 0, stream>>>(*w, 8);
    return cuda_launched(KERNEL_copy);
}

/* f32 as pairs of bf16, so that steps of eight are 16 bytes: twice the last, contiguous, dim. */
static Tensor as_halves(const Tensor *t)
{
    Tensor half = *t;
    half.dtype = BF16;
    for (int d = 0; d < t->ndim - 1; d++) half.stride[d] *= (int64_t)dtype_bytes(t->dtype) / 2;
    if (t->ndim > 0) half.n[t->ndim - 1] *= (int64_t)dtype_bytes(t->dtype) / 2;
    return half;
}

extern "C" Err cuda_copy(const Call *call)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int last = y->ndim - 1;
    const size_t bytes = dtype_bytes(y->dtype);
    Walk w;
    TRY(cuda_begin(call, KERNEL_copy));
    if (last >= 0 && x->stride[last] == 1 && y->stride[last] == 1) {
        const Tensor from = as_halves(x), to = as_halves(y);
        const Tensor *const both[2] = {&from, &to};
        TRY(walk_make(both, 2, true, &w));
        if (w.count == 0) return OK;
        if (w.ndim == 1 && w.stride[0][0] == w.width && w.stride[1][0] == w.width) {
            CUDA_TRY(cudaMemcpyAsync(y->data, x->data, (size_t)tensor_count(y) * bytes,
                                     cudaMemcpyDeviceToDevice, call->queue->stream));
            return OK;
        }
        if (w.width == WALK_WIDE) return launch(call, &w, 2);
    }
    TRY(walk_call(call, false, &w));
    if (w.count == 0) return OK;
    return launch(call, &w, bytes);
}
