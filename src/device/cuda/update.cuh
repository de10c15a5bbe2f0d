/* update.cuh -- one element of AdamW, for the kernel of one tensor and for the list: the same bits.
 *
 * Each product and sum is spelled out, so that no compiler joins them otherwise here than there. */
#ifndef DEVICE_CUDA_UPDATE_CUH
#define DEVICE_CUDA_UPDATE_CUH

#include <cuda_runtime.h>

typedef struct {
    float lr, inverse1, inverse2, beta1, beta2, eps; /* inverses of the bias corrections */
} AdamwNumbers;

/* The decay is of the weight as it was, and apart from the moments. */
static __device__ inline void adamw_step(const AdamwNumbers &a, float decay, float g, float *w,
                                         float *m, float *v)
{
    *m = fmaf(a.beta1, *m, __fmul_rn(1 - a.beta1, g));
    *v = fmaf(a.beta2, *v, __fmul_rn(__fmul_rn(1 - a.beta2, g), g));
    const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(*v, a.inverse2)), a.eps);
    const float step = __fdiv_rn(__fmul_rn(*m, a.inverse1), root);
    *w = fmaf(-a.lr, fmaf(decay, *w, step), *w);
}

#endif
