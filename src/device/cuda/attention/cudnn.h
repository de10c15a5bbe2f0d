/* cudnn.h -- attention by cuDNN's fused kernels for calls that fit them; attention.cu has our own.
 *
 * cudnn_fit.h defines which calls fit. */
#ifndef DEVICE_CUDA_ATTENTION_CUDNN_H
#define DEVICE_CUDA_ATTENTION_CUDNN_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Local. Opens cuDNN; NULL if it is missing, too old, or was absent from the build. */
CudnnPlans *cudnn_open(int capability);
void cudnn_close(CudnnPlans *f);
/* Local. Folders, as in PATH, whose Python packages may hold a newer cuDNN than the loader finds;
 * NULL: none. Effective before the first cudnn_open; the text must stay valid. */
void cudnn_search(const char *path);
/* Local. "attention by our own kernels or cuDNN 9.19.0", or why only by ours; f may be NULL. */
const char *cudnn_text(const CudnnPlans *f);
/* Local. "cuDNN 9.19.0", or "our own kernels" and the reason; f may be NULL. */
void cudnn_choice(const CudnnPlans *f, const Call *call, bool backward, char *out, size_t bytes);
/* Local. True if the call fits and cuDNN has a plan for it, which is built now; f may be NULL. */
bool cudnn_takes(CudnnPlans *f, const Call *call, bool backward);
/* Local. Runs a call that cuDNN takes. */
Err cudnn_attention(const Call *call);
Err cudnn_attention_dx(const Call *call);
/* Local. Reports on standard error, once per reason, why a call that is promised to be causal runs
 * on the generic kernels. */
void cudnn_report(CudnnPlans *f, const Call *call, bool backward);

#ifdef __cplusplus
}
#endif

#endif
