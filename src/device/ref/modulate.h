/* modulate.h -- the operands of sums over the tokens of a clip: of dy, and of dy times x or h. */
#ifndef DEVICE_REF_MODULATE_H
#define DEVICE_REF_MODULATE_H

#include "device/ref/ref.h"

typedef struct {
    const Tensor *dy, *x, *clip, *mean, *rstd; /* mean, rstd: NULL: x itself */
    const Tensor *product, *plain;             /* outputs; plain: or NULL */
    double keep_product, keep_plain;
    int64_t blocks; /* of columns */
} ClipSums;

/* The operands of modulate_dw and of gate_add_dw, as kernels.def lists them. */
static inline ClipSums clip_sums_of_scale(const Call *c)
{
    const Tensor *in = c->in, *out = c->out;
    return (ClipSums){.dy = &in[0],
                      .x = &in[1],
                      .clip = &in[2],
                      .mean = &in[3],
                      .rstd = &in[4],
                      .product = &out[0],
                      .plain = &out[1],
                      .keep_product = c->number[0],
                      .keep_plain = c->number[1]};
}

static inline ClipSums clip_sums_of_gate(const Call *c)
{
    const Tensor *in = c->in;
    return (ClipSums){.dy = &in[0],
                      .x = &in[1],
                      .clip = &in[2],
                      .product = &c->out[0],
                      .keep_product = c->number[0]};
}

#endif
