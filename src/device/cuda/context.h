/* context.h -- contexts, as device/memory.h has them. */
#ifndef DEVICE_CUDA_CONTEXT_H
#define DEVICE_CUDA_CONTEXT_H

#include "device/cuda/cuda.h"

int cuda_count(void);
Err cuda_open(int ordinal, DeviceContext **out);
void cuda_close(DeviceContext *c);
Err cuda_info(DeviceContext *c, DeviceInfo *out);

#endif
