/* entry.h -- the one symbol of sheaf-cuda.so.
 *
 * The shared object calls functions that the program exports (err_keep, rope_frequency). Both must
 * be built from the same sources; the sizes detect if they are not. */
#ifndef DEVICE_CUDA_ENTRY_H
#define DEVICE_CUDA_ENTRY_H

#include "base/plugin.h"
#include "device/runtime.h"

#define CUDA_ENTRY_NAME "sheaf_cuda"

typedef struct {
    PluginAbi abi; /* sizes of Call, Device, DeviceRuntime */
    const Device *device;
    void (*search)(const char *path); /* see device_cuda_search */
} CudaEntry;

extern const CudaEntry sheaf_cuda __attribute__((visibility("default")));

#endif
