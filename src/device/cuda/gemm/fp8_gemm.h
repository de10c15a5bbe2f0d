/* fp8_gemm.h -- GEMMs of 8 bits by cuBLASLt. */
#ifndef DEVICE_CUDA_GEMM_FP8_GEMM_H
#define DEVICE_CUDA_GEMM_FP8_GEMM_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Local. Runs a call of scaled_gemm, or scaled_gemm_add, with one scale for each operand if
 * cuBLASLt can; *done is then true. */
Err fp8_gemm_by_cublaslt(const Call *call, bool adds, bool *done);

#ifdef __cplusplus
}
#endif

#endif
