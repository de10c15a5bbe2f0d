/* along.c -- attention along one of several token dims. */
#include "device/along.h"
#include "device/cpu/simd/simd.h"

static const int32_t all_keys[4] = {0, INT32_MAX, 0, 0};

Err CPU_NAME(attention_along)(const Call *call)
{
    return along_run(call, CPU_NAME(attention), (AlongLimits){all_keys, 0});
}

Err CPU_NAME(attention_along_dx)(const Call *call)
{
    return along_run(call, CPU_NAME(attention_dx), (AlongLimits){all_keys, 0});
}
