/* tensor_map.c -- TMA descriptors of tensors. */
#include "device/cuda/tensor_map.h"

#include <cudaTypedefs.h>

void tensor_map_open(DeviceContext *c)
{
    enum cudaDriverEntryPointQueryResult found;
    void *encode = NULL;
    c->encode_tensor_map = NULL;
    if (c->capability != 90) return;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                                                12000, cudaEnableDefault, &found);
#else /* the same call, for the version of this build */
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    if (status == cudaSuccess && found == cudaDriverEntryPointSuccess)
        c->encode_tensor_map = encode;
    else
        (void)cudaGetLastError();
}

bool tensor_map_fits(const Tensor *t)
{
    const int64_t bytes = (int64_t)dtype_bytes(t->dtype);
    const int last = t->ndim - 1;
    if ((t->dtype != BF16 && t->dtype != F32) || t->ndim < 2 || t->ndim > 3) return false;
    if (t->stride[last] != 1 || (uintptr_t)t->data % 16 != 0) return false;
    for (int i = 0; i <= last; i++)
        if (t->n[i] <= 0 || t->n[i] >= INT32_MAX / 2) return false;
    for (int i = 0; i < last; i++)
        if (t->stride[i] < t->n[last] || t->stride[i] * bytes % 16 != 0) return false;
    return true;
}

Err tensor_map_of(const DeviceContext *c, const Tensor *t, const int *box, CUtensorMap *out)
{
    const cuuint64_t bytes = (cuuint64_t)dtype_bytes(t->dtype);
    cuuint64_t extent[3], stride[2];
    cuuint32_t size[3];
    const cuuint32_t step[3] = {1, 1, 1};
    for (int i = 0; i < t->ndim; i++) { /* dims of a descriptor begin with the last */
        const int dim = t->ndim - 1 - i;
        extent[i] = (cuuint64_t)t->n[dim];
        size[i] = (cuuint32_t)box[dim];
        if (i > 0) stride[i - 1] = (cuuint64_t)t->stride[dim] * bytes;
    }
    const CUresult status = ((PFN_cuTensorMapEncodeTiled_v12000)c->encode_tensor_map)(
        out, t->dtype == F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        (cuuint32_t)t->ndim, t->data, extent, stride, size, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status == CUDA_SUCCESS) return OK;
    return err_fail(ERR_IO, "cuda: cuTensorMapEncodeTiled: error %d for a tensor of %lld x %lld",
                    (int)status, (long long)t->n[0], (long long)t->n[1]);
}
