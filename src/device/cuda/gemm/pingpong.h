/* pingpong.h -- a GEMM with a fused epilogue by our own ping-pong kernel (pingpong.cu), for sm_90
 * only. */
#ifndef DEVICE_CUDA_GEMM_PINGPONG_H
#define DEVICE_CUDA_GEMM_PINGPONG_H

#include "device/cuda/gemm/autotune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A bf16 GEMM and its epilogue.
 *
 *     EPILOGUE_GELU      aux[t,n] = x[t,k] w[n,k]' + bias[n],  out = gelu(aux)
 *     EPILOGUE_DGELU     out[t,n] = (x[t,k] w[k,n]) gelu'(aux[t,n]),
 *                        sums[n] = keep sums[n] + the sum over t of out[t,n]
 *     EPILOGUE_DSWIGLU   out = (dgate, dup) = swiglu_dx of x[t,k] w[k,n] and aux = (gate, up) */
typedef struct {
    EpilogueKind kind;
    Tensor x, w, bias, sums; /* bias, sums: data NULL if there is none */
    Tensor out[2], aux[2];   /* the second of each for DSWIGLU only */
    float keep;
} PingpongGemm;

/* Local. Called once per context. Without the GPU or the driver that the kernel needs, nothing
 * fits. */
Err pingpong_open(DeviceContext *c);
bool pingpong_fits(const DeviceContext *c, const PingpongGemm *r);
Err pingpong_run(DeviceQueue *q, const PingpongGemm *r);

#ifdef __cplusplus
}
#endif

#endif
