/* hopper_grouped.h -- GEMMs over the rows of all experts by the ping-pong kernel
 * (hopper_grouped.cu), for sm_90 only. */
#ifndef DEVICE_CUDA_GEMM_HOPPER_GROUPED_H
#define DEVICE_CUDA_GEMM_HOPPER_GROUPED_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows r of expert e are offsets[e] .. offsets[e + 1], read on the device; up to 384 experts. bf16;
 * GRAD stores f32.
 *
 *     GROUPED_FORWARD   out[r,n] = keep out + x[r,k] w[e,n,k]'
 *     GROUPED_BACK      out[r,n] = keep out + x[r,k] w[e,k,n] (+ x2[r,k] w2[e,k,n])
 *     GROUPED_SWIGLU    out, out2 = x w', x w2';  out3 = swiglu of them as they are stored
 *     GROUPED_DSWIGLU   out, out2 = swiglu_dx of x[r,k] w[e,k,n] and aux = (gate, up)
 *     GROUPED_GRAD      out[e,m,n] = keep out + w[r,m]' x[r,n] over the rows of e */
typedef enum {
    GROUPED_FORWARD,
    GROUPED_BACK,
    GROUPED_SWIGLU,
    GROUPED_DSWIGLU,
    GROUPED_GRAD,
    N_GROUPED
} GroupedKind;

typedef struct {
    GroupedKind kind;
    Tensor w[2], x[2], aux[2], out[3], offsets; /* data NULL: not there */
    float keep;
} ExpertGemm;

/* Local. Called once per context. */
Err hopper_grouped_open(DeviceContext *c);
bool hopper_grouped_fits(const DeviceContext *c, const ExpertGemm *g);
Err hopper_grouped_run(DeviceQueue *q, const ExpertGemm *g);

#ifdef __cplusplus
}
#endif

#endif
