/* along.c -- attention along one of several token dims: a launch per group. */
#include "device/along.h"
#include "device/cuda/cuda.h"

enum { MAX_HEADS = 65535 }; /* of a launch */

Err cuda_attention_along(const Call *call)
{
    return along_run(call, cuda_attention, (AlongLimits){.max_heads = MAX_HEADS});
}

Err cuda_attention_along_dx(const Call *call)
{
    return along_run(call, cuda_attention_dx, (AlongLimits){.max_heads = MAX_HEADS});
}
