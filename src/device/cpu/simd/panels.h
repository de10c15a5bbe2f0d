/* panels.h -- products of any f32 and bf16 matrices by our own units: packed, blocked, over a team. */
#ifndef DEVICE_CPU_SIMD_PANELS_H
#define DEVICE_CPU_SIMD_PANELS_H

#include "device/cpu/simd/unit.h"

#define panels_gemm CPU_NAME(panels_gemm)
#define panels_finish CPU_NAME(panels_finish)

/* As kernels.def has gemm. An element of c is the same whatever stands beside it. */
Err panels_gemm(const Call *call, const Unit *unit);

/* A tile of sums that are whole, [m][step], and where it goes in c: panels_finish.c. */
typedef struct {
    const Call *call;
    int64_t row, m, column, n;
    const float *sum;
    int64_t step;
} Finish;

/* c = keep * c + sum (+ bias) for the tile. */
void panels_finish(const Finish *f);

#endif
