/* ref.c -- the reference device: plain loops, the oracle of all others, always built. */
#include "device/ref/ref.h"

const Device device_ref = {
    .name = "ref",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = ref_##id,
#include "device/kernels.def"
#undef KERNEL
        },
};
