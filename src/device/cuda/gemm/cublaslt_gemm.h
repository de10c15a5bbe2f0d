/* cublaslt_gemm.h -- GEMM calls translated to cuBLASLt's terms. */
#ifndef DEVICE_CUDA_GEMM_CUBLASLT_GEMM_H
#define DEVICE_CUDA_GEMM_CUBLASLT_GEMM_H

#include "device/cuda/gemm/autotune.h"

/* Operands of a call's epilogue; NULL: it has none. */
typedef struct {
    const Tensor *bias;
    const Tensor *addend; /* added to the result; NULL: keep times the old c is added */
    const Tensor *aux;    /* written by GELU, read by DGELU and DSWIGLU */
    EpilogueKind kind;
} EpilogueOperands;

/* Local. Describes the GEMM and its epilogue in cuBLASLt's terms. False if cuBLASLt has none for
 * them. */
bool lt_describe(const Call *call, const EpilogueOperands *b, LtShape *shape, LtOperands *operands);
/* Local. The parts of a call whose inputs begin with a and b: its GEMM, and its pointwise op. */
Call gemm_alone(const Call *call, const Tensor *bias, Tensor c);
Call pointwise_alone(const Call *call, int n_in, const Tensor *in, Tensor out);

#endif
