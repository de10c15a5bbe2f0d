/* cudnn_fit.h -- the attention calls that cuDNN's fused kernels can run, and the reason for others.
 *
 * It needs no CUDA header, so a test checks the compiled programs of models on any machine.
 *
 *     causal promised     the mask is known without reading the ranges
 *     whole sequences     as many keys as rows, a multiple of the length
 *     whole groups        heads / key heads of them read each key head
 *     layout              bf16, contiguous channels, rows and heads aligned to 16 bytes
 *     no accumulation     gradients are written, not added to */
#ifndef DEVICE_CUDA_ATTENTION_CUDNN_FIT_H
#define DEVICE_CUDA_ATTENTION_CUDNN_FIT_H

#include <stdio.h>

#include "device/heads.h"

/* Versions of cuDNN (91400 is 9.14.0): the oldest that is used; the first that supports lengths
 * that are not a multiple of 128. */
enum { CUDNN_FIT_OLDEST = 90300, CUDNN_FIT_ANY_LENGTH = 91501 };

static inline bool cudnn_reads(const Tensor *t)
{
    return t->dtype == BF16 && t->stride[2] == 1 && t->stride[0] % 8 == 0 &&
           t->stride[1] % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

/* NULL, or the operands whose type or layout does not fit. */
static inline const char *cudnn_operand_misfit(const Call *call, bool backward)
{
    const Tensor *in = call->in, *out = call->out;
    if (!cudnn_reads(&in[0]) || !cudnn_reads(&in[1]) || !cudnn_reads(&in[2]))
        return "q, k or v is not bf16 with rows aligned to 16 bytes";
    if (!backward && call->number[0] != 0) return "o and lse carry on from other keys";
    if (!backward)
        return cudnn_reads(&out[0]) ? NULL : "o is not bf16 with rows aligned to 16 bytes";
    if (in[6].ndim == 2) return "o is given as delta";
    if (call->n_in != 7 || !cudnn_reads(&in[4]) || !cudnn_reads(&in[6]))
        return "o or its gradient is not bf16 with rows aligned to 16 bytes";
    if (!cudnn_reads(&out[0]) || !cudnn_reads(&out[1]) || !cudnn_reads(&out[2]))
        return "the gradient of q, k or v is not bf16 with rows aligned to 16 bytes";
    for (int i = 0; i < 3; i++)
        if (call->number[i] != 0) return "the gradient of q, k or v accumulates";
    return NULL;
}

/* NULL if the call fits cuDNN of this version, otherwise the reason against it. */
static inline const char *cudnn_misfit(const Call *call, bool backward, size_t version)
{
    const int64_t *q = call->in[0].n, *k = call->in[1].n, length = call->attr.attention.causal;
    if (length <= 0) return "its mask is not promised to be causal";
    if (q[0] != k[0] || q[0] == 0 || q[0] % length != 0)
        return "its rows are not whole sequences, or its keys are not those of its rows";
    if (length % 128 != 0 && version < CUDNN_FIT_ANY_LENGTH)
        return "the length of its sequences is not a multiple of 128, which cuDNN supports from "
               "9.15.1 on";
    if (q[2] % 8 != 0 || q[2] > 128 || q[2] == 0)
        return "its heads are not a multiple of 8 channels, up to 128";
    if (q[1] == 0 || k[1] == 0 || call->attr.attention.head_at != 0 || q[1] % k[1] != 0 ||
        head_group(&call->attr, q[1], k[1]) != q[1] / k[1])
        return "its heads are not whole groups";
    return cudnn_operand_misfit(call, backward);
}

/* Writes which kernels run a call with this misfit: "cuDNN 9.19.0", or our own and the reason. */
static inline void cudnn_fit_text(const char *misfit, size_t version, char *out, size_t bytes)
{
    const int v = (int)version;
    if (misfit)
        snprintf(out, bytes, "our own kernels instead of cuDNN's: %s", misfit);
    else
        snprintf(out, bytes, "cuDNN %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

#endif
