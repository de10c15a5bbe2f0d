/* table.c -- the kernels of one instruction set, as a device. */
#include "device/cpu/simd/simd.h"

extern const Device CPU_NAME(device);

const Device CPU_NAME(device) = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = CPU_NAME(id),
#include "device/kernels.def"
#undef KERNEL
        },
};
