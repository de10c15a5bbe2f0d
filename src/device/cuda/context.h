/* context.h -- the context functions of the device runtime table (device/runtime.h). */
#ifndef DEVICE_CUDA_CONTEXT_H
#define DEVICE_CUDA_CONTEXT_H

#include "device/cuda/cuda.h"

int cuda_count(void);
Err cuda_open(int ordinal, DeviceContext **out);
void cuda_close(DeviceContext *c);
Err cuda_info(DeviceContext *c, DeviceInfo *out);
Err cuda_identify(int ordinal, uint64_t *out);
void cuda_attention_choice(const DeviceContext *c, const Call *call, bool backward, char *out,
                           size_t bytes);
Err cuda_lend_scratch(DeviceContext *c, void *at, size_t bytes);
Err cuda_queue_open(DeviceContext *c, DeviceQueue **out);
void cuda_queue_close(DeviceQueue *q);
Err cuda_native(DeviceQueue *q, void **out);

#endif
