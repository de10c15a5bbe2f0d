/* table.c -- the device table of one instruction set. */
#include "device/cpu/simd/gemm/gemm.h"

extern const Device CPU_NAME(device);

static const DevicePrepack prepack = {CPU_NAME(prepacked_bytes), CPU_NAME(prepack)};

const Device CPU_NAME(device) = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = CPU_NAME(id),
#include "device/kernels.def"
#undef KERNEL
        },
    .prepack = &prepack,
};
