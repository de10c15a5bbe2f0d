/* precision.h -- the precisions of a run, as rows of element types.
 *
 *     storage       activations, their gradients, and the weights that programs read
 *     compute       operands of the GEMMs that run in FP8; of others it is the storage type
 *     gradient      the operand of such a GEMM that is a gradient
 *     accumulate    sums, statistics, gradients of parameters, master weights and moments */
#ifndef BASE_PRECISION_H
#define BASE_PRECISION_H

#include "base/dtype.h"

typedef struct {
    const char *name; /* of precision.compute */
    DType storage, compute, gradient, accumulate;
} PrecisionRow;

typedef enum {
    PRECISION_F32,
    PRECISION_BF16,
    PRECISION_FP8,
    PRECISION_F64,
    N_PRECISIONS
} Precision;

static inline const PrecisionRow *precision_row(Precision p)
{
    static const PrecisionRow row[N_PRECISIONS] = {
        [PRECISION_F32] = {"f32", F32, F32, F32, F32},
        [PRECISION_BF16] = {"bf16", BF16, BF16, BF16, F32},
        [PRECISION_FP8] = {"fp8", BF16, E4M3, E5M2, F32},
        [PRECISION_F64] = {"f64", F64, F64, F64, F64},
    };
    return &row[p];
}

#endif
