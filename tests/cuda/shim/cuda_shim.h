/* cuda_shim.h -- a CUDA runtime without a GPU, for tests of the host's part of device cuda.
 *
 *     memory     host memory that is committed when it is touched; every allocation is counted
 *     copies     run at once
 *     kernels    do not run; a launch that a GPU would refuse is an error
 *     cuBLASLt   has one algorithm for each GEMM, which takes all of the workspace
 *     TMA        descriptors that the driver would refuse are an error
 *
 * A test program that contains the shim exports these symbols, so sheaf-cuda.so uses them instead
 * of NVIDIA's libraries. Results are therefore meaningless; memory, launches and errors are not. */
#ifndef TESTS_CUDA_SHIM_H
#define TESTS_CUDA_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 90: H100, 80: A100, 86: a card with less shared memory; of contexts that are opened later. */
void shim_set_capability(int capability);

typedef struct {
    int64_t allocations, host_allocations; /* calls so far */
    int64_t bytes, host_bytes;             /* now */
    int64_t launches, graphs;              /* calls so far */
    int64_t refused;                       /* launches and descriptors that a GPU would refuse */
    char why[256];                         /* the first of them */
} ShimCount;
ShimCount shim_count(void);

#endif
