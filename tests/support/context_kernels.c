/* context_kernels.c -- the calls of kernels for a visit and for a merge. */
#include <math.h>

#include "support/context_run_parts.h"

static Tensor tensor(void *data, DType type, int64_t rows, int64_t n, int64_t size)
{
    Tensor t = {.data = data, .dtype = type, .ndim = size ? 3 : 2, .n = {rows, n, size}};
    t.stride[0] = n * (size ? size : 1);
    t.stride[1] = size ? size : 1;
    t.stride[2] = 1;
    return t;
}

static Tensor array(const ContextRun *w, int id, const RunRows *rows, double *data)
{
    const AttentionCase *c = w->c;
    const int width = run_width(c, id);
    if (width == c->heads && (id == RUN_LSE || id == RUN_DELTA || id == RUN_O_LSE))
        return tensor(data, F64, rows->n, c->heads, 0);
    return tensor(data, F64, rows->n, width / c->size, c->size);
}

static Tensor rows_array(const ContextRun *w, int id, const RunRows *rows)
{
    return array(w, id, rows, rows->of[id]);
}

static Err call_kernel(const ContextRun *w, KernelId id, const Call *call)
{
    return w->device->kernel[id](call);
}

/* The ranges of the queries, in the rows of the keys. */
static Err local_ranges(ContextRun *w, const RunRows *q, const RunRows *k, Tensor *out)
{
    int32_t *whole, *local;
    int64_t *span;
    Call call = {.n_in = 1, .n_out = 1};
    TRY(ARENA_NEW(w->temp, 4 * (q->n + 1), &whole));
    TRY(ARENA_NEW(w->temp, 4 * (q->n + 1), &local));
    TRY(ARENA_NEW(w->temp, 3 * (k->n + 1), &span));
    for (int i = 0; i < 4 * q->n; i++) whole[i] = w->c->ranges[4 * q->token[i / 4] + i % 4];
    for (int i = 0; i < k->n; i++) {
        int64_t *s = &span[3 * call.attr.rows.n];
        if (i > 0 && k->token[i] == s[-2]) {
            s[-2]++; /* the run goes on */
            continue;
        }
        s[0] = k->token[i], s[1] = s[0] + 1, s[2] = 1;
        call.attr.rows.n++;
    }
    call.attr.rows.span = span;
    call.in[0] = tensor(whole, I32, q->n, 4, 0);
    *out = call.out[0] = tensor(local, I32, q->n, 4, 0);
    return call_kernel(w, KERNEL_local_ranges, &call);
}

Err kernel_merge(ContextRun *w, RunRows *rows, double *o, double *lse)
{
    Call call = {.n_in = 4, .n_out = 2};
    call.in[0] = call.out[0] = rows_array(w, RUN_O, rows);
    call.in[1] = call.out[1] = rows_array(w, RUN_O_LSE, rows);
    call.in[2] = array(w, RUN_O, rows, o);
    call.in[3] = array(w, RUN_O_LSE, rows, lse);
    return call_kernel(w, KERNEL_attention_merge, &call);
}

static Err open_call(ContextRun *w, const RunRows *q, const RunRows *k, Call *call)
{
    *call = (Call){.n_in = 4};
    call->attr.attention.scale = 1 / sqrt(w->c->size);
    call->in[0] = rows_array(w, RUN_Q, q);
    call->in[1] = rows_array(w, RUN_K, k);
    call->in[2] = rows_array(w, RUN_V, k);
    return local_ranges(w, q, k, &call->in[3]);
}

Err kernel_attention(ContextRun *w, RunRows *q, const RunRows *k)
{
    Call call;
    TRY(open_call(w, q, k, &call));
    call.out[0] = rows_array(w, RUN_O, q);
    call.out[1] = rows_array(w, RUN_O_LSE, q);
    call.n_out = 2;
    call.number[0] = 1; /* carried on from the visits before, or from -inf */
    return call_kernel(w, KERNEL_attention, &call);
}

Err kernel_gradients(ContextRun *w, RunRows *q, RunRows *k)
{
    Call call;
    TRY(open_call(w, q, k, &call));
    call.in[4] = rows_array(w, RUN_DOUT, q);
    call.in[5] = rows_array(w, RUN_LSE, q);
    call.in[6] = rows_array(w, RUN_DELTA, q);
    call.out[0] = rows_array(w, RUN_DQ, q);
    call.out[1] = rows_array(w, RUN_DK, k);
    call.out[2] = rows_array(w, RUN_DV, k);
    call.n_in = 7;
    call.n_out = 3;
    call.number[0] = call.number[1] = call.number[2] = 1;
    return call_kernel(w, KERNEL_attention_dx, &call);
}

Err kernel_delta(ContextRun *w, const double *o, double *delta)
{
    const AttentionCase *c = w->c;
    const RunRows all = {.n = c->tokens};
    Call call = {.n_in = 2, .n_out = 1};
    call.in[0] = array(w, RUN_DOUT, &all, c->dout);
    call.in[1] = array(w, RUN_O, &all, (double *)o);
    call.out[0] = array(w, RUN_DELTA, &all, delta);
    return call_kernel(w, KERNEL_attention_delta, &call);
}
