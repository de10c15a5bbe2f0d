/* blas_shim.c -- cuBLASLt of the shim: one algorithm, which takes all of the workspace. */
#include <cublasLt.h>
#include <string.h>

#include "cuda/shim/cuda_shim.h"

static int something; /* what handles point to */

#define OPENS(name, ...)                                                                           \
    cublasStatus_t name(__VA_ARGS__)                                                               \
    {                                                                                              \
        *out = (void *)&something;                                                                 \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
#define DONE(name, ...)                                                                            \
    cublasStatus_t name(__VA_ARGS__) { return CUBLAS_STATUS_SUCCESS; }
#pragma GCC diagnostic ignored "-Wunused-parameter"

OPENS(cublasLtCreate, cublasLtHandle_t *out)
OPENS(cublasLtMatmulDescCreate, cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
      cudaDataType_t scale)
OPENS(cublasLtMatrixLayoutCreate, cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
      uint64_t columns, int64_t ld)
OPENS(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t *out)
DONE(cublasLtDestroy, cublasLtHandle_t handle)
DONE(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t d)
DONE(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t l)
DONE(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t p)
DONE(cublasLtMatmulDescSetAttribute, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a,
     const void *from, size_t bytes)
DONE(cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t p,
     cublasLtMatmulPreferenceAttributes_t a, const void *from, size_t bytes)
DONE(cublasLtMatmulAlgoInit, cublasLtHandle_t h, cublasComputeType_t compute, cudaDataType_t scale,
     cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id,
     cublasLtMatmulAlgo_t *algo)
DONE(cublasLtMatmulAlgoConfigSetAttribute, cublasLtMatmulAlgo_t *algo,
     cublasLtMatmulAlgoConfigAttributes_t a, const void *from, size_t bytes)

size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "error";
}

/* The preference cannot be read back: an algorithm takes what it may without one. */
enum { MOST_WORKSPACE = 32 << 20 };

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                                              cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *result, int *n)
{
    *n = most > 0;
    if (*n)
        *result = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS,
                                                    .workspaceSize = MOST_WORKSPACE};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    result->workspaceSize = MOST_WORKSPACE;
    return result->state = CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t h, cublasComputeType_t compute,
                                        cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                        cudaDataType_t c, cudaDataType_t d, int most, int *ids,
                                        int *n)
{
    return *n = 0, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t a, void *out,
                                                 size_t bytes, size_t *written)
{
    memset(out, 0, bytes);
    return *written = 0, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a,
                                                    void *out, size_t bytes, size_t *written)
{
    memset(out, 0, bytes);
    return *written = bytes, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t al, const void *b,
                              cublasLtMatrixLayout_t bl, const void *beta, const void *c,
                              cublasLtMatrixLayout_t cl, void *to, cublasLtMatrixLayout_t tl,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    return CUBLAS_STATUS_SUCCESS;
}
