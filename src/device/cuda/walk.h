/* walk.h -- how a kernel that works element by element goes through its tensors.
 *
 * All tensors of a call have one shape, and each its strides. Neighbouring dims that are one run in
 * all of them become one; where every innermost run is contiguous and aligned, a step takes
 * eight elements, which is 16 bytes of bf16:
 *
 *     y [T, H, d] dense, x [T, H, d] of rows that are 3 H d apart  ->  [T, H d / 8] steps of eight
 */
#ifndef DEVICE_CUDA_WALK_H
#define DEVICE_CUDA_WALK_H

#include "device/cuda/cuda.h"

enum { MAX_WALK_TENSORS = 6, WALK_WIDE = 8 };

typedef struct {
    int ndim;
    int width;                                  /* elements of a step: 1 or WALK_WIDE */
    int64_t count;                              /* steps */
    uint32_t n[MAX_DIMS];                       /* in steps along the last dim */
    int64_t stride[MAX_WALK_TENSORS][MAX_DIMS]; /* in elements, of a step */
    char *at[MAX_WALK_TENSORS];
    DType dtype[MAX_WALK_TENSORS];
} ElementWalk;

#ifdef __cplusplus
extern "C" {
#endif

/* Local. The walk over some tensors of one shape, in steps of eight where `wide` allows it and they
 * do. ERR_CONFIG past 2^32 - 1 steps that are not one run. */
Err walk_make(const Tensor *const *tensor, int n, bool wide, ElementWalk *out);
/* Local. Over the inputs of a call, then its outputs. */
Err walk_call(const Call *call, bool wide, ElementWalk *out);
/* Local. Whether rows of eight elements may be read at once: contiguous, and all aligned. */
bool walk_rows_wide(const Tensor *t);

#ifdef __cplusplus
}
#endif

#endif
