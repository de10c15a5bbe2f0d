/* local_ranges.cu -- key ranges in the rows of one block of keys.
 *
 * Spans are kernel arguments, so no memory of the device holds them. More than one launch has room
 * for are added up by several launches. */
#include "device/cuda/pointwise.cuh"
#include "device/row_spans.h"

enum { LAUNCH_SPANS = 128 };

struct SpanBatch {
    int64_t span[3 * LAUNCH_SPANS];
    int64_t n;
    bool first;
};

static __global__ void __launch_bounds__(POINT_THREADS)
    local_ranges_kernel(const __grid_constant__ Tensor x, const __grid_constant__ Tensor y,
                        const __grid_constant__ SpanBatch batch)
{
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= y.n[0] * y.n[1]) return;
    const int64_t t = at / y.n[1], i = at % y.n[1];
    const int32_t from = ((const int32_t *)x.data)[t * x.stride[0] + i * x.stride[1]];
    int32_t *to = (int32_t *)y.data + t * y.stride[0] + i * y.stride[1];
    *to = (batch.first ? 0 : *to) + (int32_t)row_spans_below(batch.span, batch.n, from);
}

extern "C" Err cuda_local_ranges(const Call *call)
{
    const Tensor *y = &call->out[0];
    const int64_t n = call->attr.rows.n, count = y->n[0] * y->n[1];
    TRY(cuda_begin(call, KERNEL_local_ranges));
    if (count == 0) return OK;
    for (int64_t from = 0; from == 0 || from < n; from += LAUNCH_SPANS) {
        SpanBatch batch = {};
        batch.first = from == 0;
        batch.n = n - from < LAUNCH_SPANS ? n - from : LAUNCH_SPANS;
        for (int64_t i = 0; i < 3 * batch.n; i++)
            batch.span[i] = call->attr.rows.span[3 * from + i];
        const unsigned blocks = (unsigned)blocks_of(count, POINT_THREADS);
        local_ranges_kernel<<<blocks, POINT_THREADS, 0, call->queue->stream>>>(call->in[0], *y,
                                                                               batch);
    }
    return cuda_launched(KERNEL_local_ranges);
}
