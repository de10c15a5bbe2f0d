/* table.c -- the kernels of one instruction set, as a device. */
#include "device/cpu/simd/gemm/panels.h"

extern const Device CPU_NAME(device);

static const DeviceArranging arranging = {CPU_NAME(arranged_bytes), CPU_NAME(arrange)};

const Device CPU_NAME(device) = {
    .name = "cpu",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = CPU_NAME(id),
#include "device/kernels.def"
#undef KERNEL
        },
    .arranging = &arranging,
};
