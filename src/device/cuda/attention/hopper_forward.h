/* hopper_forward.h -- attention on wgmma and TMA, for sm_90 only. */
#ifndef DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_H
#define DEVICE_CUDA_ATTENTION_HOPPER_FORWARD_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True if the kernel can run this call of attention: bf16 operands with heads of up to 128
 * contiguous channels, a multiple of 8, rows and heads aligned to 16 bytes, and a positive scale.
 * Masks and outputs may be any. */
bool hopper_forward_fits(const Call *call);
/* Runs the whole call. */
Err hopper_forward(const Call *call);

#ifdef __cplusplus
}
#endif

#endif
