/* table.c -- the kernel table of the device, and the symbol by which the program finds it. */
#include "device/cuda/attention/cudnn.h"
#include "device/cuda/cuda.h"
#include "device/cuda/entry.h"

static const Device device_cuda = {
    .name = "cuda",
    .kernel =
        {
#define KERNEL(id) [KERNEL_##id] = cuda_##id,
#include "device/kernels.def"
#undef KERNEL
        },
    .runtime = &cuda_runtime,
};

const CudaEntry sheaf_cuda = {
    .abi = {{sizeof(Call), sizeof(Device), sizeof(DeviceRuntime)}},
    .device = &device_cuda,
    .search = cudnn_search,
};
