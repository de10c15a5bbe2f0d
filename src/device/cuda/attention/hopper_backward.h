/* hopper_backward.h -- the gradient of attention on wgmma and TMA, for sm_90 only. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_H
#define DEVICE_CUDA_ATTENTION_HOPPER_BACKWARD_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if the kernels can run this call of attention_dx: bf16 operands with heads of 64 or 128
 * contiguous channels, rows and heads aligned to 16 bytes. Masks and outputs may be any. */
bool hopper_backward_fits(const Call *call);
/* Runs the whole call; in deterministic mode with the generic kernel for dq. */
Err hopper_backward(const Call *call);

#ifdef __cplusplus
}
#endif

#endif
