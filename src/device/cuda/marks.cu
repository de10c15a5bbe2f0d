/* marks.cu -- marks of amaxes and the scales that follow from them (base/fp8.h). */
#include "base/fp8.h"
#include "device/cuda/value.cuh"

typedef struct {
    const float *m[MAX_IN];
    float *out;
    int n, first, bins;
    float keep;
} MarkArgs;

/* One block, whose threads stride over the bins. */
static __global__ void __launch_bounds__(256) mark_kernel(const __grid_constant__ MarkArgs a)
{
    for (int i = threadIdx.x; i < a.bins; i += blockDim.x) {
        const int which = i / FP8_BINS - a.first;
        float sum = a.keep != 0 ? a.keep * a.out[i] : 0;
        if (which >= 0 && which < a.n) {
            const float amax = *a.m[which];
            const int exponent =
                (int)(__float_as_uint(amax) >> 23 & 0xff) - 127 - FP8_LEAST_EXPONENT;
            const int bin = min(max(exponent, 0), FP8_BINS - 1);
            if (amax > 0 && i % FP8_BINS == bin) sum += 1;
        }
        a.out[i] = sum;
    }
}

extern "C" Err cuda_mark_amax(const Call *call)
{
    MarkArgs a = {};
    a.n = call->n_in;
    for (int i = 0; i < a.n; i++) a.m[i] = (const float *)call->in[i].data;
    a.out = (float *)call->out[0].data;
    a.first = call->attr.sites.first;
    a.bins = (int)call->out[0].n[0];
    a.keep = (float)call->number[0];
    TRY(cuda_begin(call, KERNEL_mark_amax));
    mark_kernel<<<1, 256, 0, call->queue->stream>>>(a);
    return cuda_launched(KERNEL_mark_amax);
}

/* A thread for each site. */
static __global__ void scales_kernel(const float *mark, uint32_t gradients, float *s, int sites)
{
    const int site = (int)threadIdx.x;
    int bin = FP8_BINS - 1;
    if (site >= sites) return;
    while (bin >= 0 && !(mark[site * FP8_BINS + bin] >= 0.0078125f)) bin--; /* FP8_OLDEST */
    const bool gradient = (gradients >> site & 1) != 0;
    const int exponent =
        bin < 0 ? (gradient ? -8 : -4) : bin + FP8_LEAST_EXPONENT + 1 - (gradient ? 14 : 7);
    s[site] = __uint_as_float((uint32_t)(127 + exponent) << 23);
}

extern "C" Err cuda_delayed_scales(const Call *call)
{
    const Tensor s = call->out[0];
    TRY(cuda_begin(call, KERNEL_delayed_scales));
    scales_kernel<<<1, FP8_SITES, 0, call->queue->stream>>>(
        (const float *)call->in[0].data, call->attr.sites.gradients, (float *)s.data, (int)s.n[0]);
    return cuda_launched(KERNEL_delayed_scales);
}

static __global__ void __launch_bounds__(256) age_kernel(const float *dw, float *w, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n) w[i] = dw[i] > 0 ? 1 : 0.5f * w[i];
}

extern "C" Err cuda_age_marks(const Call *call)
{
    const int64_t n = tensor_count(&call->in[0]);
    TRY(cuda_begin(call, KERNEL_age_marks));
    if (n > 0)
        age_kernel<<<(unsigned)blocks_of(n, 256), 256, 0, call->queue->stream>>>(
            (const float *)call->in[0].data, (float *)call->out[0].data, n);
    return cuda_launched(KERNEL_age_marks);
}
