/* cudnn.h -- attention by cuDNN's fused kernels, where a call fits them; attention.cu has our own.
 *
 * What fits stands in fit.h. A call that is promised to be causal and goes to our own all the same is
 * told of on standard error, once for each reason. */
#ifndef DEVICE_CUDA_ATTENTION_CUDNN_H
#define DEVICE_CUDA_ATTENTION_CUDNN_H

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
