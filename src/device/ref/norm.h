/* norm.h -- the operands of a norm or its gradient, and one row of a norm in f64. `cpu` falls back
 * on that for rows whose squares overflow in f32. */
#ifndef DEVICE_REF_NORM_H
#define DEVICE_REF_NORM_H

#include "device/ref/ref.h"

typedef struct {
    const Tensor *dy, *x, *w, *b, *mean, *rstd; /* dy, b, mean: or NULL */
    const Tensor *y;                            /* or dx; NULL: not computed */
    const Tensor *addend;                       /* added to dx, or NULL */
    const Tensor *dw, *db;                      /* or NULL */
    double eps, keep_dw, keep_db;
} Norm;

/* The operands of a gradient, as kernels.def lists them; of a layernorm or an rmsnorm. */
static inline Norm norm_of_dx(const Call *c, bool layer)
{
    const Tensor *in = c->in;
    const int rstd = layer ? 4 : 3;
    return (Norm){.dy = &in[0],
                  .x = &in[1],
                  .w = &in[2],
                  .mean = layer ? &in[3] : NULL,
                  .rstd = &in[rstd],
                  .addend = c->n_in > rstd + 1 ? &in[rstd + 1] : NULL,
                  .y = &c->out[0]};
}

static inline Norm norm_of_dw(const Call *c, bool layer)
{
    return (Norm){.dy = &c->in[0],
                  .x = &c->in[1],
                  .mean = layer ? &c->in[2] : NULL,
                  .rstd = &c->in[layer ? 3 : 2],
                  .dw = &c->out[0],
                  .db = layer ? &c->out[1] : NULL,
                  .keep_dw = c->number[0],
                  .keep_db = c->number[1]};
}

static inline Norm norm_of_back(const Call *c, bool layer)
{
    Norm m = norm_of_dx(c, layer);
    m.dw = &c->out[1];
    m.db = layer ? &c->out[2] : NULL;
    m.keep_dw = c->number[1];
    m.keep_db = c->number[2];
    return m;
}

/* Writes the column sums of the addend of a layernorm, if the call has that output. Runs before dx
 * is written, which may overwrite the addend. */
static inline Err norm_sum_addend(const Call *c, Kernel sum_rows)
{
    if (c->n_out < 4) return OK;
    const Call sum = call_sum_rows(c, &c->in[5], 3);
    return sum_rows(&sum);
}

/* Local. Writes mean (if there is one), rstd and y of the row. */
void ref_norm_row(const Norm *m, int64_t row);

#endif
