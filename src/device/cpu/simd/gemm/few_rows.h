/* few_rows.h -- products of a few rows with a matrix whose rows are contiguous: a token of each
 * sequence times a weight. Every number of the weight is read once and used for a few products alone,
 * so what counts is to read it as it lies: no library, no blocks. */
#ifndef DEVICE_CPU_SIMD_GEMM_FEW_ROWS_H
#define DEVICE_CPU_SIMD_GEMM_FEW_ROWS_H

#include "device/cpu/simd/simd.h"

enum { FEW_ROWS = 8 };

#define few_rows_fit CPU_NAME(few_rows_fit)
#define few_rows_gemm CPU_NAME(few_rows_gemm)

/* Is it such a product: c[m,n] of a[m,k] and b[n,k], m at most FEW_ROWS? */
bool few_rows_fit(const Call *call);
/* As kernels.def has gemm. A row of c is the same whatever the other rows are, and however many. */
Err few_rows_gemm(const Call *call);

#endif
