/* copy.cu -- copies bytes between any strides, also integers and NaN payloads.
 *
 * Two contiguous sides are a memcpy of the driver. Otherwise elements of 1, 2, 4 or 8 bytes are
 * copied, or 16 bytes at a time if the rows of both sides allow it. */
#include "device/cuda/pointwise.cuh"

template <typename T>
static __global__ void __launch_bounds__(POINT_THREADS)
    copy_kernel(const __grid_constant__ ElementWalk w, int64_t bytes)
{
    const int64_t step = (int64_t)blockIdx.x * POINT_THREADS + threadIdx.x;
    int64_t at[2];
    if (step >= w.count) return;
    walk_at<2>(w, step, at);
    *(T *)(w.at[1] + at[1] * bytes) = *(const T *)(w.at[0] + at[0] * bytes);
}

/* Eight elements of eight bytes would be 64 bytes, so such elements are copied one by one. */
static Err launch(const Call *call, const ElementWalk *w, size_t bytes)
{
    const unsigned blocks = (unsigned)blocks_of(w->count, POINT_THREADS);
    const cudaStream_t stream = call->queue->stream;
    if (w->width == WALK_WIDE && bytes == 2)
        copy_kernel<uint4><<<blocks, POINT_THREADS, 0, stream>>>(*w, 2);
    else if (bytes == 1)
        copy_kernel<uint8_t><<<blocks, POINT_THREADS, 0, stream>>>(*w, 1);
    else if (bytes == 2)
        copy_kernel<uint16_t><<<blocks, POINT_THREADS, 0, stream>>>(*w, 2);
    else if (bytes == 4)
        copy_kernel<uint32_t><<<blocks, POINT_THREADS, 0, stream>>>(*w, 4);
    else
        copy_kernel<uint2><<<blocks, POINT_THREADS, 0, stream>>>(*w, 8);
    return cuda_launched(KERNEL_copy);
}

/* f32 viewed as pairs of bf16, so that a step of eight is 16 bytes: twice the last, contiguous,
 * dim. */
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
    ElementWalk w;
    TRY(cuda_begin(call, KERNEL_copy));
    if (last >= 0 && bytes > 1 && x->stride[last] == 1 && y->stride[last] == 1) {
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

/* Rows of x, each copied to its place in y; the walk is over the elements of a row. */
typedef struct {
    ElementWalk inner;
    Tensor at;
    int64_t rows, x_step, y_step, bytes; /* x_step, y_step: in elements of `bytes` bytes */
} RowPlaces;

template <typename T>
static __global__ void __launch_bounds__(POINT_THREADS)
    put_rows_kernel(const __grid_constant__ RowPlaces p)
{
    const int64_t index = (int64_t)blockIdx.x * POINT_THREADS + threadIdx.x;
    const int64_t row = index / p.inner.count;
    int64_t at[2];
    if (row >= p.rows) return;
    walk_at<2>(p.inner, index % p.inner.count, at);
    const int64_t place = ((const int32_t *)p.at.data)[row * p.at.stride[0]];
    if (place < 0) return;
    *(T *)(p.inner.at[1] + (place * p.y_step + at[1]) * p.bytes) =
        *(const T *)(p.inner.at[0] + (row * p.x_step + at[0]) * p.bytes);
}

/* The first row of a tensor. */
static Tensor row_of(const Tensor *t)
{
    Tensor row = *t;
    row.ndim = t->ndim - 1;
    for (int d = 0; d < row.ndim; d++) row.n[d] = t->n[d + 1], row.stride[d] = t->stride[d + 1];
    return row;
}

template <typename T> static Err put_rows(const Call *call, const RowPlaces &p)
{
    const unsigned blocks = (unsigned)blocks_of(p.rows * p.inner.count, POINT_THREADS);
    put_rows_kernel<T><<<blocks, POINT_THREADS, 0, call->queue->stream>>>(p);
    return cuda_launched(KERNEL_put_rows_at);
}

extern "C" Err cuda_put_rows_at(const Call *call)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t bytes = (int64_t)dtype_bytes(y->dtype), halves = bytes / 2;
    RowPlaces p = {};
    TRY(cuda_begin(call, KERNEL_put_rows_at));
    if (tensor_count(x) == 0) return OK;
    Tensor from = row_of(x), to = row_of(y);
    const Tensor *const both[2] = {&from, &to};
    const int last = from.ndim - 1;
    p.at = call->in[1], p.rows = x->n[0];
    p.x_step = x->stride[0], p.y_step = y->stride[0], p.bytes = bytes;
    TRY(walk_make(both, 2, false, &p.inner));
    const bool runs = last >= 0 && from.stride[last] == 1 && to.stride[last] == 1 &&
                      x->stride[0] * halves % WALK_WIDE == 0 &&
                      y->stride[0] * halves % WALK_WIDE == 0;
    if (runs) { /* 16 bytes at a time if aligned */
        ElementWalk wide;
        from = as_halves(&from), to = as_halves(&to);
        TRY(walk_make(both, 2, true, &wide));
        if (wide.width == WALK_WIDE) {
            p.inner = wide;
            p.x_step *= halves, p.y_step *= halves, p.bytes = 2;
            return put_rows<uint4>(call, p);
        }
    }
    return bytes == 2   ? put_rows<uint16_t>(call, p)
           : bytes == 4 ? put_rows<uint32_t>(call, p)
                        : put_rows<uint2>(call, p);
}
