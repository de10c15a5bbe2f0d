/* panels.h -- products of any f32 and bf16 matrices by our own units: packed, blocked, over a team. */
#ifndef DEVICE_CPU_SIMD_PANELS_H
#define DEVICE_CPU_SIMD_PANELS_H

#include "device/cpu/simd/unit.h"

#define panels_gemm CPU_NAME(panels_gemm)
#define panels_finish CPU_NAME(panels_finish)
#define gemm_with CPU_NAME(gemm_with)

/* Part of c. */
typedef struct {
    int64_t row, m, column, n;
} Box;

/* What is done beside a product, to the tiles of c as they come: nothing, where all is NULL. */
typedef struct {
    const Tensor *onto; /* the product is added to this, in place of what c holds; may be c */
    const Call *call;   /* for `then`, which runs on a tile of c that is stored, while it is near */
    void (*then)(const Call *call, Box tile, Team *team);
} Beside;

/* As kernels.def has gemm, and what is beside it. An element of c is the same whatever stands next to
 * it. */
Err panels_gemm(const Call *call, const Unit *unit, const Beside *beside);
/* The same by whatever suits the product: gemm.c. */
Err gemm_with(const Call *call, const Beside *beside);

/* A tile of sums that are whole, [m][step], and where they go: panels_finish.c. */
typedef struct {
    const Call *call;
    const Tensor *old; /* what is kept: c, or another of its shape */
    Box box;
    const float *sum;
    int64_t step;
} Finish;

/* c = keep * old + sum (+ bias) for the tile. */
void panels_finish(const Finish *f);

#endif
