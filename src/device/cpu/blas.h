/* blas.h -- a library that multiplies matrices of f32, opened at run time where one is asked for: our
 * own kernels are as fast, and are what they are compared with.
 *
 * What trips with OpenBLAS, and the guard of each:
 *     it starts threads of its own, whose cut changes bits     one thread; tiles are ours
 *     it takes new CPUs for old ones (a fifth of the speed)    OPENBLAS_CORETYPE, before it loads
 *
 * It is one per process, like the environment that it reads: opened once, by whoever opens the
 * device first, before there are threads that multiply. */
#ifndef DEVICE_CPU_BLAS_H
#define DEVICE_CPU_BLAS_H

#include <stdbool.h>

/* cblas_sgemm: row-major is 101, plain 111, transposed 112. */
typedef void (*Sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);
enum { BLAS_ROWS = 101, BLAS_PLAIN = 111, BLAS_TRANSPOSED = 112 };

/* Local. Opens `library`; NULL: libopenblas.so.0. The core type is chosen by what the CPU can do,
 * unless the environment says one. False: there is none, and blas_text says why. */
bool blas_open(const char *library);
/* Local. NULL: none is open. */
Sgemm blas_sgemm(void);
/* Local. Whether products go to the library that is open; at first they do. For tests. */
void blas_use(bool library);
/* Local. "OpenBLAS 0.3.21, core SkylakeX", or why there is none. */
const char *blas_text(void);

#endif
