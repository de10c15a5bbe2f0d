/* pointwise.h -- the loop of all elementwise kernels. */
#ifndef DEVICE_CPU_SIMD_POINTWISE_H
#define DEVICE_CPU_SIMD_POINTWISE_H

#include "device/cpu/simd/simd.h"

enum { MAX_POINTWISE = 3 }; /* inputs, and outputs, of a kernel */

/* Computes y[o][i] from x[k][i] for i in [0, n), n <= PIECE. With UPDATE, y contains the outputs'
 * old values. A y may alias an x: a formula reads element i before it writes it. */
typedef void (*VectorFormula)(const Call *call, int64_t n, const float *const *x, float *const *y);
typedef enum { ASSIGN, UPDATE } PointwiseMode;

/* The same directly on memory, where all tensors are contiguous and of one type, f32 or bf16.
 * Processes pairs of vectors and returns the number of elements done; the formula does the rest.
 * For bf16 this takes two thirds of the time. */
typedef int64_t (*DirectFormula)(ElementForm form, int64_t n, const void *const *x, void *const *y);

#define pointwise CPU_NAME(pointwise)
#define pointwise_direct CPU_NAME(pointwise_direct)

/* Local. Tensors of one shape, any strides; an output may be an input. */
void pointwise(const Call *call, VectorFormula formula, PointwiseMode mode);
void pointwise_direct(const Call *call, VectorFormula formula, DirectFormula direct);

#endif
