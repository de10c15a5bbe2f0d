/* by.h -- kernels that write 8 bits by a given scale, as two kernels: one that makes the values, in
 * memory of the caller's, and quantize_by.
 *
 *     rmsnorm_by     x w s -> y rstd m z?           rmsnorm      x w -> t rstd
 *     swiglu_by      gate up s -> y m z?            swiglu       gate up -> t
 *     swiglu_dx_by   dy gate up s -> y m z?         swiglu_dx    dy gate up -> t, left and right
 */
#ifndef DEVICE_BY_H
#define DEVICE_BY_H

#include "device/device.h"

/* in: operands before the scale; stats: outputs between y and m. */
typedef struct {
    int n_in, n_stats;
    bool halves; /* the kernel makes two values, side by side */
} ByForm;

static const ByForm by_rmsnorm = {2, 1, false}, by_swiglu = {2, 0, false},
                    by_swiglu_dx = {3, 0, true};

static inline size_t by_scratch_bytes(const Call *call)
{
    return (size_t)tensor_count(&call->out[0]) * dtype_bytes(call->in[0].dtype) + 1;
}

/* Local. Runs both; `scratch` has by_scratch_bytes. */
static inline Err by_parts(const Call *call, ByForm form, void *scratch, Kernel make,
                           Kernel quantize_by)
{
    const Tensor *y = &call->out[0];
    const int64_t width = y->n[1];
    Call p = *call, q = *call;
    Tensor t = *y;
    t.data = scratch, t.dtype = call->in[0].dtype;
    t.stride[0] = width, t.stride[1] = 1;
    p.n_in = form.n_in;
    p.n_out = 1 + form.n_stats + form.halves;
    p.out[0] = t;
    if (form.n_stats) p.attr.norm.eps = call->attr.by.eps;
    if (form.halves) {
        p.out[0].n[1] = width / 2;
        p.out[1] = p.out[0];
        p.out[1].data = (char *)scratch + (size_t)(width / 2) * dtype_bytes(t.dtype);
    }
    TRY(make(&p));
    q.n_in = 2;
    q.in[0] = t, q.in[1] = call->in[form.n_in];
    q.n_out = call->n_out - form.n_stats;
    for (int i = 1; i < q.n_out; i++) q.out[i] = call->out[i + form.n_stats];
    return quantize_by(&q);
}

#endif
