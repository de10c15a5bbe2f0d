/* along.c -- attention along one of several token dims. */
#include "device/along.h"
#include "device/ref/ref.h"

static const int32_t all_keys[4] = {0, INT32_MAX, 0, 0};

Err ref_attention_along(const Call *call)
{
    return along_run(call, ref_attention, (AlongKeys){.range = all_keys});
}

Err ref_attention_along_dx(const Call *call)
{
    return along_run(call, ref_attention_dx, (AlongKeys){.range = all_keys});
}
