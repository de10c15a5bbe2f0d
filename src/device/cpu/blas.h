/* blas.h -- an optional BLAS library for f32 GEMM, opened at run time. Device cpu does not need it:
 * its own kernels are as fast. Benchmarks and tests compare them with the library.
 *
 * Two properties of OpenBLAS need a guard:
 *     it starts its own threads, whose partition changes bits     one thread; device cpu splits C
 *     it runs old kernels on new CPUs, at a fifth of the speed    OPENBLAS_CORETYPE during dlopen
 *
 * There is one library per process. It is opened once, before any thread multiplies, because
 * loading it changes the environment for a moment. */
#ifndef DEVICE_CPU_BLAS_H
#define DEVICE_CPU_BLAS_H

#include <stdbool.h>

/* cblas_sgemm; the values of its enums are below. */
typedef void (*Sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);
enum { BLAS_ROWS = 101, BLAS_PLAIN = 111, BLAS_TRANSPOSED = 112 }; /* row-major, op() */

/* The caller reads the environment: a variable that the user has set keeps its value. */
typedef struct BlasLibrary {
    const char *file;      /* NULL: libopenblas.so.0 */
    bool core_type_is_set; /* OPENBLAS_CORETYPE; else chosen by the CPU's instruction set */
    bool threads_are_set;  /* OPENBLAS_NUM_THREADS; else 1 */
} BlasLibrary;

/* Local. Opens the library; later calls use the one of the first. False: it could not be opened,
 * and blas_text returns the reason. */
bool blas_open(const BlasLibrary *library);
/* Local. NULL: no library is open, or it is not in use. */
Sgemm blas_sgemm(void);
/* Local. Sets whether f32 GEMMs use the open library; they do after blas_open. For tests. */
void blas_use(bool library);
/* Local. "OpenBLAS 0.3.21, core SkylakeX", or the reason why no library is open. */
const char *blas_text(void);

#endif
