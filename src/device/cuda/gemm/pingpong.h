/* pingpong.h -- a product and what stands beside it, by a kernel of our own (relay.cu); for sm_90 alone. */
#ifndef DEVICE_CUDA_GEMM_PINGPONG_H
#define DEVICE_CUDA_GEMM_PINGPONG_H

#include "device/cuda/gemm/autotune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bf16. EPILOGUE_GELU: aux[t,n] = x[t,k] w[n,k]' + bias[n], out = gelu(aux).
 * EPILOGUE_DGELU: out[t,n] = x[t,k] w[k,n] gelu'(aux[t,n]), sums[n] = keep sums + the sum over t of out.
 * EPILOGUE_DSWIGLU: out = dgate, dup = swiglu_dx of x[t,k] w[k,n] and aux = gate, up. */
typedef struct {
    EpilogueKind kind;
    Tensor x, w, bias, sums; /* bias, sums: data NULL where there are none */
    Tensor out[2], aux[2];   /* the second of each: of swiglu */
    float keep;
} PingpongGemm;

/* Local. Once per context; where the card or the driver has not what it takes, nothing fits. */
Err pingpong_open(DeviceContext *c);
bool pingpong_fits(const DeviceContext *c, const PingpongGemm *r);
Err pingpong_run(DeviceQueue *q, const PingpongGemm *r);

#ifdef __cplusplus
}
#endif

#endif
