/* pointwise.h -- one walk for all kernels whose outputs at an element follow from that element. */
#ifndef DEVICE_CPU_SIMD_POINTWISE_H
#define DEVICE_CPU_SIMD_POINTWISE_H

#include "device/cpu/simd/simd.h"

enum { MAX_POINTWISE = 3 }; /* inputs, and outputs, of such a kernel */

/* y[o][i] from x[k][i], for i in [0, n), n <= PIECE. With UPDATE, y comes in as the outputs hold
 * it. A y may be an x: a formula reads element i before it writes it. */
typedef void (*VectorFormula)(const Call *call, int64_t n, const float *const *x, float *const *y);
typedef enum { ASSIGN, UPDATE } PointwiseMode;

/* The same straight from memory, where all lie contiguous and are of one type, f32 or bf16: for whole pairs
 * of vectors, and how many elements those are; the formula does the rest. Of bf16 this takes two thirds of
 * the time. */
typedef int64_t (*DirectFormula)(Form form, int64_t n, const void *const *x, void *const *y);

#define pointwise CPU_NAME(pointwise)
#define pointwise_direct CPU_NAME(pointwise_direct)

/* Tensors of one shape, any strides; an output may be an input. */
void pointwise(const Call *call, VectorFormula formula, PointwiseMode mode);
void pointwise_direct(const Call *call, VectorFormula formula, DirectFormula direct);

#endif
