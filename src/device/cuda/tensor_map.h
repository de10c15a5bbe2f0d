/* tensor_map.h -- TMA descriptors of tensors, made on the host and passed to a kernel as
 * __grid_constant__ arguments. */
#ifndef DEVICE_CUDA_TENSOR_MAP_H
#define DEVICE_CUDA_TENSOR_MAP_H

#include "device/cuda/cuda.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the driver's function that encodes descriptors, on a card that has TMA;
 * c->encode_tensor_map stays NULL if there is none. */
void tensor_map_open(DeviceContext *c);

/* True if TMA can read and write the tensor of two or three dims: bf16 or f32, contiguous in the
 * last dim, each row aligned to 16 bytes. */
bool tensor_map_fits(const Tensor *t);

/* Describes t in boxes of box[i] elements along dim i, with 128-byte swizzle: the last dim of a
 * box is at most 128 bytes. */
Err tensor_map_of(const DeviceContext *c, const Tensor *t, const int *box, CUtensorMap *out);

#ifdef __cplusplus
}
#endif

#endif
