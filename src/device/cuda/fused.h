/* fused.h -- attention by cuDNN's fused kernels, where a call fits them; attention.cu has our own.
 *
 * They fit: bf16, a promise that the mask is causal (attr.attention.causal), heads of a multiple of
 * 8 up to 128 channels, whole groups, nothing kept, and for the gradient o as an input. */
#ifndef DEVICE_CUDA_FUSED_H
#define DEVICE_CUDA_FUSED_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Local. NULL where cuDNN is missing, too old, or was not there when this was built. */
FusedPlans *fused_open(int capability);
void fused_close(FusedPlans *f);
/* Local. "attention by cuDNN 9.19.0", or why not; f may be NULL. */
const char *fused_text(const FusedPlans *f);
/* Local. False: the call does not fit, and nothing was done. */
bool fused_attention(const Call *call, Err *err);
bool fused_attention_dx(const Call *call, Err *err);

#ifdef __cplusplus
}
#endif

#endif
