/* walk.c -- joins dims and chooses the step width, from shapes and addresses alone. */
#include "device/cuda/walk.h"

#include <string.h>

/* True if eight elements can be read by one 16-byte load, or by two. */
static bool aligned(const void *at) { return (uintptr_t)at % 16 == 0; }

static void add_dim(ElementWalk *w, const Tensor *const *tensor, int n, int d)
{
    const int last = w->ndim - 1;
    const int64_t extent = tensor[0]->n[d];
    bool joins = last >= 0 && (int64_t)w->n[last] * extent <= UINT32_MAX;
    if (extent == 1) return;
    for (int i = 0; i < n && joins; i++)
        joins = w->stride[i][last] == tensor[i]->stride[d] * extent;
    if (!joins) w->n[w->ndim++] = 1;
    w->n[w->ndim - 1] *= (uint32_t)extent;
    for (int i = 0; i < n; i++) w->stride[i][w->ndim - 1] = tensor[i]->stride[d];
}

/* Makes steps of eight if all rows are contiguous and aligned to 16 bytes. */
static void widen(ElementWalk *w, int n)
{
    const int last = w->ndim - 1;
    if (w->n[last] % WALK_WIDE != 0) return;
    for (int i = 0; i < n; i++) {
        if (w->stride[i][last] != 1 || !aligned(w->at[i])) return;
        for (int d = 0; d < last; d++)
            if (w->stride[i][d] % WALK_WIDE != 0) return;
    }
    w->width = WALK_WIDE;
    w->n[last] /= WALK_WIDE;
    for (int i = 0; i < n; i++) w->stride[i][last] = WALK_WIDE;
}

Err walk_make(const Tensor *const *tensor, int n, bool wide, ElementWalk *out)
{
    ElementWalk w = {.width = 1, .count = 1};
    MUST(n <= MAX_WALK_TENSORS, "a walk over %d tensors", n);
    for (int i = 0; i < n; i++) {
        w.at[i] = tensor[i]->data;
        w.dtype[i] = tensor[i]->dtype;
    }
    for (int d = 0; d < tensor[0]->ndim; d++) {
        if (tensor[0]->n[d] > UINT32_MAX)
            return err_fail(ERR_CONFIG, "cuda: an extent of %lld; the limit is 2^32 - 1",
                            (long long)tensor[0]->n[d]);
        add_dim(&w, tensor, n, d);
    }
    if (w.ndim == 0) { /* a single element */
        w.n[w.ndim++] = 1;
        for (int i = 0; i < n; i++) w.stride[i][0] = 1;
    }
    if (wide) widen(&w, n);
    for (int d = 0; d < w.ndim; d++) w.count *= w.n[d];
    if (w.ndim > 1 && w.count > UINT32_MAX)
        return err_fail(
            ERR_CONFIG,
            "cuda: a view of %lld steps that is not contiguous; the limit is 2^32 - 1, use "
            "a smaller batch.micro",
            (long long)w.count);
    *out = w;
    return OK;
}

Err walk_call(const Call *call, bool wide, ElementWalk *out)
{
    const Tensor *tensor[MAX_WALK_TENSORS];
    MUST(call->n_in + call->n_out <= MAX_WALK_TENSORS, "%d tensors", call->n_in + call->n_out);
    for (int i = 0; i < call->n_in; i++) tensor[i] = &call->in[i];
    for (int i = 0; i < call->n_out; i++) tensor[call->n_in + i] = &call->out[i];
    return walk_make(tensor, call->n_in + call->n_out, wide, out);
}

bool walk_rows_wide(const Tensor *t)
{
    if (t->ndim == 0 || t->n[t->ndim - 1] % WALK_WIDE != 0 || !aligned(t->data)) return false;
    if (t->stride[t->ndim - 1] != 1) return false;
    for (int d = 0; d < t->ndim - 1; d++)
        if (t->stride[d] % WALK_WIDE != 0 && t->n[d] > 1) return false;
    return true;
}
