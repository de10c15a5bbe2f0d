/* update.cuh -- AdamW of one element, shared by the kernel of one tensor and the list: the same
 * bits.
 *
 * Every multiplication and addition is an intrinsic, so that the compiler contracts none
 * differently in the two kernels. */
#ifndef DEVICE_CUDA_UPDATE_CUH
#define DEVICE_CUDA_UPDATE_CUH

#include <cuda_runtime.h>

typedef struct {
    /* inverse1, inverse2: of the bias corrections */
    float lr, inverse1, inverse2, beta1, beta2, eps;
} AdamwNumbers;

/* Decoupled weight decay, of the weight before the step. */
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
