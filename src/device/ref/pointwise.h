/* pointwise.h -- the loop of all kernels whose output at an element depends on that element
 * alone. */
#ifndef DEVICE_REF_POINTWISE_H
#define DEVICE_REF_POINTWISE_H

#include <math.h>
#include "device/ref/ref.h"

enum { MAX_POINT = 3 }; /* most inputs, and outputs, of such a kernel */

/* Computes y[o][i] from x[k][i], for i in [0, n). With UPDATE, y holds the old outputs at first. */
typedef void (*Formula)(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK]);
typedef enum { ASSIGN, UPDATE } PointMode;

/* Tensors of one shape, any strides; an output may be an input. */
void pointwise(const Call *call, Formula formula, PointMode mode);

/* gelu(x) = x/2 (1 + tanh u), u = GELU_A (x + GELU_B x^3); and its slope at x. */
#define GELU_A 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_B 0.044715

static inline double gelu_at(double x)
{
    return 0.5 * x * (1 + tanh(GELU_A * (x + GELU_B * x * x * x)));
}

static inline double gelu_slope_at(double x)
{
    const double t = tanh(GELU_A * (x + GELU_B * x * x * x));
    const double du = GELU_A * (1 + 3 * GELU_B * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

/* silu' = s (1 + gate (1 - s)), s = sigmoid(gate) */
static inline void swiglu_dx_at(double dy, double gate, double up, double *dgate, double *dup)
{
    const double s = 1 / (1 + exp(-gate));
    *dgate = dy * up * s * (1 + gate * (1 - s));
    *dup = dy * gate * s;
}

#endif
