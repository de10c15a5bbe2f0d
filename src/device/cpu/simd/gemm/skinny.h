/* skinny.h -- skinny GEMM: at most MAX_SKINNY_ROWS rows of A times a weight with contiguous rows.
 *
 * Decoding multiplies one token of each sequence by a weight. Every element of the weight is read
 * once and used for a few multiplications only, so memory bandwidth is the limit. The weight is
 * therefore read in place: no packing, no blocking, no BLAS library. */
#ifndef DEVICE_CPU_SIMD_GEMM_SKINNY_H
#define DEVICE_CPU_SIMD_GEMM_SKINNY_H

#include "device/cpu/simd/simd.h"

enum { MAX_SKINNY_ROWS = 8 };

#define skinny_fits CPU_NAME(skinny_fits)
#define skinny_gemm CPU_NAME(skinny_gemm)

/* Local. True if the call is C[m,n] of A[m,k] and B[n,k] with m <= MAX_SKINNY_ROWS and k > 0. */
bool skinny_fits(const Call *call);
/* Local. gemm of kernels.def. The bits of a row of C depend neither on the other rows nor on m. */
Err skinny_gemm(const Call *call);

#endif
