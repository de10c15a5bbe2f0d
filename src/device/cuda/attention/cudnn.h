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
CudnnPlans *cudnn_open(int capability);
void cudnn_close(CudnnPlans *f);
/* Local. Folders, as in PATH, whose Python packages may hold a newer cuDNN than the loader finds; NULL: none.
 * Effective before the first cudnn_open; the text must stay valid. */
void cudnn_search(const char *path);
/* Local. "attention by cuDNN 9.19.0", or why not; f may be NULL. */
const char *cudnn_text(const CudnnPlans *f);
/* Local. False: the call does not fit, and nothing was done. */
bool cudnn_attention(const Call *call, Err *err);
bool cudnn_attention_dx(const Call *call, Err *err);

#ifdef __cplusplus
}
#endif

#endif
