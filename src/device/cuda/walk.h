/* walk.h -- the iteration of an elementwise kernel over its tensors.
 *
 * All tensors of a call have one shape, each with its own strides. Adjacent dims that are
 * contiguous to each other in all tensors are joined. If every innermost run is contiguous and
 * aligned, a step is eight elements, which is 16 bytes of bf16:
 *
 *     y [T, H, d] dense, x [T, H, d] with a row stride of 3 H d  ->  [T, H d / 8] steps of eight */
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

/* Local. Plans the walk over n tensors of one shape, in steps of eight if `wide` and their layouts
 * allow it. ERR_CONFIG for 2^32 or more steps that are not one run. */
Err walk_make(const Tensor *const *tensor, int n, bool wide, ElementWalk *out);
/* Local. Over the inputs of a call, then its outputs. */
Err walk_call(const Call *call, bool wide, ElementWalk *out);
/* Local. True if rows can be read eight elements at a time: contiguous and aligned. */
bool walk_rows_wide(const Tensor *t);

#ifdef __cplusplus
}
#endif

#endif
