/* blas_library.h -- a BLAS library for comparison, with the environment variables that the user
 * set. */
#ifndef BENCH_SUPPORT_BLAS_LIBRARY_H
#define BENCH_SUPPORT_BLAS_LIBRARY_H

#include <stdlib.h>

#include "device/cpu/blas.h"

/* Local. file: NULL for libopenblas.so.0. */
static inline BlasLibrary blas_library(const char *file)
{
    return (BlasLibrary){.file = file,
                         .core_type_is_set = getenv("OPENBLAS_CORETYPE") != NULL,
                         .threads_are_set = getenv("OPENBLAS_NUM_THREADS") != NULL};
}

#endif
