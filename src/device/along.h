/* along.h -- attention along one of several token dims, as calls of plain attention.
 *
 *     q[e,b,a,h,c]    e groups of b tokens at a places each; a place attends to itself in its group
 *
 *     group e, places 2 to 4 -> q[b, (3 h), c]      places are more heads: a head (place, h) reads
 *                              k[s, (3 g), c]       the key head (place, g) that h reads there
 *
 * Places are joined with heads where storage permits it: if their strides are one run, and each
 * place has whole groups of heads that share a key head. Else a call has one place. */
#ifndef DEVICE_ALONG_H
#define DEVICE_ALONG_H

#include "device/device.h"

/* The keys of each query. */
typedef struct {
    const int32_t *range; /* one query's, or all queries' */
    int64_t step;         /* from one query's four numbers to the next one's; 0: all have these */
} AlongKeys;

/* x[e,b,a,h,..]: group e, `n` places from `a` on, as [b,(n h),..]. */
static inline Tensor along_part(const Tensor *x, int64_t e, int64_t a, int64_t n)
{
    Tensor part = {.dtype = x->dtype, .ndim = x->ndim - 2};
    const int64_t at = e * x->stride[0] + a * x->stride[2];
    part.data = (char *)x->data + at * (int64_t)dtype_bytes(x->dtype);
    part.n[0] = x->n[1], part.stride[0] = x->stride[1];
    part.n[1] = n * x->n[3], part.stride[1] = x->stride[3];
    if (x->ndim == 5) part.n[2] = x->n[4], part.stride[2] = x->stride[4];
    return part;
}

static inline bool along_is_run(const Tensor *x)
{
    return x->n[2] <= 1 || x->stride[2] == x->n[3] * x->stride[3];
}

/* Places of a call. */
static inline int64_t along_places(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    const int64_t group = call->attr.attention.group, heads = q->n[3], places = q->n[2];
    bool run = heads > 0 && k->n[3] > 0 && call->attr.attention.head_at == 0;
    run = run && (group == 0 || group * k->n[3] == heads);
    for (int i = 0; i < call->n_in; i++) run = run && along_is_run(&call->in[i]);
    for (int i = 0; i < call->n_out; i++) run = run && along_is_run(&call->out[i]);
    return run ? places : 1;
}

/* Runs plain attention, or its gradient, of this device on every part. */
static inline Err along_run(const Call *call, Kernel attention, AlongKeys keys)
{
    const Tensor *q = &call->in[0];
    const int64_t step = along_places(call);
    for (int64_t e = 0; e < q->n[0]; e++)
        for (int64_t a = 0; a < q->n[2]; a += step) {
            const int64_t n = a + step < q->n[2] ? step : q->n[2] - a;
            Call part = *call;
            part.n_in = 0;
            part.attr.attention.key_at = part.attr.attention.causal = 0;
            for (int i = 0; i < call->n_in; i++) {
                part.in[part.n_in++] = along_part(&call->in[i], e, a, n);
                if (i == 2) /* ranges[b,4] come after v */
                    part.in[part.n_in++] = (Tensor){.data = (void *)(uintptr_t)keys.range,
                                                    .dtype = I32,
                                                    .ndim = 2,
                                                    .n = {q->n[1], 4},
                                                    .stride = {keys.step, 1}};
            }
            for (int i = 0; i < call->n_out; i++) part.out[i] = along_part(&call->out[i], e, a, n);
            const Err err = attention(&part);
            if (err != OK) return err;
        }
    return OK;
}

#endif
