/* pointwise.h -- one walk for all kernels whose outputs at an element follow from that element. */
#ifndef DEVICE_REF_POINTWISE_H
#define DEVICE_REF_POINTWISE_H

#include "device/ref/ref.h"

enum { MAX_POINT = 3 }; /* inputs, and outputs, of such a kernel */

/* y[o][i] from x[k][i], for i in [0, n). With UPDATE, y comes in as the outputs hold it. */
typedef void (*Formula)(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK]);
typedef enum { ASSIGN, UPDATE } PointMode;

/* Tensors of one shape, any strides; an output may be an input. */
void pointwise(const Call *call, Formula formula, PointMode mode);

#endif
