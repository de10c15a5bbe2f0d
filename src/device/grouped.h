/* grouped.h -- the rows and the matrix of one expert, for GEMMs over the rows of all experts.
 *
 *     a [r,k]        b [e,k,n]          c [r,n]
 *     rows of 0   x  b[0]          ->   rows of 0       offsets[e] .. offsets[e + 1]; an expert may
 *     rows of 1   x  b[1]          ->   rows of 1       have no rows */
#ifndef DEVICE_GROUPED_H
#define DEVICE_GROUPED_H

#include "device/device.h"

static inline int64_t grouped_offset(const Tensor *offsets, int64_t e)
{
    return ((const int32_t *)offsets->data)[e * offsets->stride[0]];
}

/* Rows [from, to) of a matrix. */
static inline Tensor grouped_rows(Tensor t, int64_t from, int64_t to)
{
    t.data = (char *)t.data + from * t.stride[0] * (int64_t)dtype_bytes(t.dtype);
    t.n[0] = to - from;
    return t;
}

/* Matrix e of a stack [e,a,b]. */
static inline Tensor grouped_matrix(const Tensor *stack, int64_t e)
{
    return (Tensor){.data = (char *)stack->data +
                            e * stack->stride[0] * (int64_t)dtype_bytes(stack->dtype),
                    .dtype = stack->dtype,
                    .ndim = 2,
                    .n = {stack->n[1], stack->n[2]},
                    .stride = {stack->stride[1], stack->stride[2]}};
}

/* gemm of rows [from, to), all of expert e. */
static inline Call grouped_call(const Call *call, int64_t e, int64_t from, int64_t to)
{
    Call one = *call;
    one.n_in = 2;
    one.in[0] = grouped_rows(call->in[0], from, to);
    one.in[1] = grouped_matrix(&call->in[1], e);
    one.out[0] = grouped_rows(call->out[0], from, to);
    return one;
}

/* gemm that makes the gradient of expert e's matrix. */
static inline Call grouped_call_dw(const Call *call, int64_t e)
{
    const int64_t from = grouped_offset(&call->in[2], e), to = grouped_offset(&call->in[2], e + 1);
    Call one = *call;
    one.n_in = 2;
    one.attr.gemm.ta = true;
    one.attr.gemm.tb = false;
    one.in[0] = grouped_rows(call->in[0], from, to);
    one.in[1] = grouped_rows(call->in[1], from, to);
    one.out[0] = grouped_matrix(&call->out[0], e);
    return one;
}

/* Element e of a list, as a list. */
static inline Tensor grouped_scale(Tensor s, int64_t e)
{
    s.data = (char *)s.data + e * s.stride[0] * (int64_t)dtype_bytes(s.dtype);
    s.n[0] = 1;
    return s;
}

/* A part of a grouped call as a call without scales: a, b, offsets. */
static inline Call grouped_unscaled(const Call *call)
{
    Call plain = *call;
    plain.in[2] = call->in[4];
    plain.n_in = 3;
    return plain;
}

/* scaled_gemm of expert e: of its rows, or for the gradient of its matrix. */
static inline Call grouped_scaled(const Call *call, int64_t e, bool dw)
{
    const Call plain = grouped_unscaled(call);
    const Tensor *offsets = &call->in[4];
    Call one =
        dw ? grouped_call_dw(&plain, e)
           : grouped_call(&plain, e, grouped_offset(offsets, e), grouped_offset(offsets, e + 1));
    one.in[2] = grouped_scale(call->in[2], e);
    one.in[3] = grouped_scale(call->in[3], e);
    one.n_in = 4;
    return one;
}

/* amax, then quantize, of matrix x with the scale s[e]; `amax` is memory for one number. */
static inline Call grouped_quantized(const Call *call, Tensor x, Tensor y, int64_t e, float *amax)
{
    Call q = *call;
    q.in[0] = x;
    q.in[1] = (Tensor){.data = amax, .dtype = F32, .ndim = 1, .n = {1}, .stride = {1}};
    q.n_in = q.n_out = 2;
    q.out[0] = y;
    q.out[1] = grouped_scale(call->out[1], e);
    return q;
}

/* The same call without offsets, on the rows that experts have. */
static inline Call grouped_live(const Call *call)
{
    const Tensor *offsets = &call->in[call->n_in - 1];
    const int64_t rows = grouped_offset(offsets, offsets->n[0] - 1);
    Call live = *call;
    live.n_in--;
    for (int i = 0; i < live.n_in; i++) live.in[i].n[0] = rows;
    for (int i = 0; i < live.n_out; i++) live.out[i].n[0] = rows;
    return live;
}

/* grouped_gemm of a part of a fused call: out = keep out + in[a] in[b]. */
static inline Call grouped_part(const Call *call, int a, int b, int offsets, Tensor out,
                                double keep)
{
    Call part = *call;
    const Tensor in[] = {call->in[a], call->in[b], call->in[offsets]};
    for (int i = 0; i < 3; i++) part.in[i] = in[i];
    part.n_in = 3;
    part.out[0] = out;
    part.n_out = 1;
    part.number[0] = keep;
    return part;
}

/* The kernels of all experts, expert by expert or part by part with the kernels of a device. */
typedef Err GroupedKernel(const Call *call);

static inline Err grouped_scaled_each(const Call *call, GroupedKernel *gemm, bool dw)
{
    for (int64_t e = 0; e + 1 < call->in[4].n[0]; e++) {
        const Call one = grouped_scaled(call, e, dw);
        TRY(gemm(&one));
    }
    return OK;
}

/* x: rows by offsets, or a stack of matrices. */
static inline Err grouped_quantize_each(const Call *call, GroupedKernel *amax,
                                        GroupedKernel *quantize)
{
    const bool stack = call->n_in == 1;
    const Tensor *x = &call->in[0], *y = &call->out[0], *offsets = &call->in[1];
    for (int64_t e = 0; e < call->out[1].n[0]; e++) {
        float most;
        const int64_t from = stack ? 0 : grouped_offset(offsets, e),
                      to = stack ? 0 : grouped_offset(offsets, e + 1);
        const Call q =
            grouped_quantized(call, stack ? grouped_matrix(x, e) : grouped_rows(*x, from, to),
                              stack ? grouped_matrix(y, e) : grouped_rows(*y, from, to), e, &most);
        Call find = q;
        find.n_in = find.n_out = 1;
        find.out[0] = q.in[1];
        TRY(amax(&find));
        TRY(quantize(&q));
    }
    return OK;
}

static inline Err grouped_swiglu_by_parts(const Call *call, GroupedKernel *gemm,
                                          GroupedKernel *swiglu)
{
    const Call gate = grouped_part(call, 0, 1, 3, call->out[0], 0);
    const Call up = grouped_part(call, 0, 2, 3, call->out[1], 0);
    Call act = *call;
    act.in[0] = call->out[0], act.in[1] = call->out[1], act.in[2] = call->in[3];
    act.n_in = 3;
    act.out[0] = call->out[2];
    act.n_out = 1;
    TRY(gemm(&gate));
    TRY(gemm(&up));
    return swiglu(&act);
}

/* dy has the place of dgate. */
static inline Err grouped_dswiglu_by_parts(const Call *call, GroupedKernel *gemm,
                                           GroupedKernel *swiglu_dx)
{
    const Call dy = grouped_part(call, 0, 1, 2, call->out[0], 0);
    Call back = *call;
    back.in[0] = call->out[0], back.in[1] = call->in[3], back.in[2] = call->in[4];
    back.in[3] = call->in[2];
    back.n_in = 4;
    TRY(gemm(&dy));
    return swiglu_dx(&back);
}

static inline Err grouped_pair_by_parts(const Call *call, GroupedKernel *gemm)
{
    const Call first = grouped_part(call, 0, 1, 4, call->out[0], 0);
    const Call second = grouped_part(call, 2, 3, 4, call->out[0], 1);
    TRY(gemm(&first));
    return gemm(&second);
}

#endif
