/* local_ranges.c -- key ranges in the rows of one block of keys. */
#include "device/ref/ref.h"
#include "device/row_spans.h"

Err ref_local_ranges(const Call *call)
{
    const Tensor *x = &call->in[0], *y = &call->out[0];
    for (int64_t t = 0; t < y->n[0]; t++)
        for (int64_t i = 0; i < y->n[1]; i++) {
            const int32_t *from = (const int32_t *)x->data + t * x->stride[0] + i * x->stride[1];
            int32_t *to = (int32_t *)y->data + t * y->stride[0] + i * y->stride[1];
            *to = (int32_t)row_spans_below(call->attr.rows.span, call->attr.rows.n, *from);
        }
    return OK;
}
