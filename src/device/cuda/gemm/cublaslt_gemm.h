/* cublaslt_gemm.h -- calls in the library's terms: what files of products share. */
#ifndef DEVICE_CUDA_GEMM_CUBLASLT_GEMM_H
#define DEVICE_CUDA_GEMM_CUBLASLT_GEMM_H

#include "device/cuda/gemm/autotune.h"

/* What a call does beside multiplying. */
typedef struct {
    const Tensor *bias;
    const Tensor *addend; /* added to the product; NULL: keep times what c holds */
    const Tensor *aux;    /* of a point: what it keeps, or reads */
    EpilogueKind kind;
} EpilogueOperands;

/* Local. The two in the library's terms; false where it has none. */
bool lt_describe(const Call *call, const EpilogueOperands *b, LtShape *shape, LtOperands *operands);
/* Local. The product alone, of a call whose inputs begin with a and b; and the other op alone. */
Call gemm_alone(const Call *call, const Tensor *bias, Tensor c);
Call pointwise_alone(const Call *call, int n_in, const Tensor *in, Tensor out);

#endif
