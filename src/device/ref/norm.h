/* norm.h -- one row of a norm in f64. `cpu` falls back on it for rows whose squares overflow in
 * f32. */
#ifndef DEVICE_REF_NORM_H
#define DEVICE_REF_NORM_H

#include "device/ref/ref.h"

typedef struct {
    const Tensor *dy, *x, *w, *b, *mean, *rstd; /* dy, b, mean: or NULL */
    const Tensor *y;                            /* or dx */
    double eps;
} Norm;

/* Local. Writes mean (where there is one), rstd and y of the row. */
void ref_norm_row(const Norm *m, int64_t row);

#endif
