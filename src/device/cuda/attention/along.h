/* along.h -- attention along one of several token dims: its kernels. */
#ifndef DEVICE_CUDA_ATTENTION_ALONG_H
#define DEVICE_CUDA_ATTENTION_ALONG_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries or keys of a short sequence, and channels of a head. */
enum { ALONG_SHORT = 128, ALONG_CHANNELS = 128 };

/* Local. Ranges that are not stored: rows of `queries` see the next `keys` keys each. */
static inline Tensor along_ranges(int64_t queries, int64_t keys)
{
    return (Tensor){NULL, I32, 2, {0, 4}, {queries > 0 ? queries : 1, keys}};
}

/* Local. Query heads that read one key head; there are key heads. */
static inline int64_t along_group(const Call *call)
{
    return call->attr.attention.group ? call->attr.attention.group
                                      : call->in[0].n[3] / call->in[1].n[3];
}

/* attention.cu: plain attention by the generic kernels; the heads of an operand [t,h,c] are
 * those of several sequences: n[3] of each, stride[3] from one to the next. */
Err cuda_attention_sequences(const Call *call);
Err cuda_attention_sequences_dx(const Call *call);

/* along_short.cu, along_short_dx.cu: calls that along.c found to fit. */
Err cuda_along_short(const Call *call);
Err cuda_along_short_dx(const Call *call);

#ifdef __cplusplus
}
#endif

#endif
