/* choice.c -- the table of attention shapes and their kernels. */
#include "device/cuda/attention/choice.h"

#include <stdlib.h>
#include <string.h>
#include "device/cuda/attention/cudnn.h"
#include "device/cuda/gemm/autotune.h"
#include "device/heads.h"

static AttentionKey shape_of(const DeviceContext *c, const Call *call, bool backward)
{
    return (AttentionKey){
        .backward = backward,
        .any_order = c->any_order,
        .rows = call->in[0].n[0],
        .keys = key_count(call),
        .heads = call->in[0].n[1],
        .key_heads = call->in[1].n[1],
        .channels = call->in[0].n[2],
        .causal = call->attr.attention.causal,
        .out_type = call->out[0].dtype,
    };
}

static AttentionEntry *lookup(const AttentionTable *all, const AttentionKey *shape)
{
    for (int i = 0; i < all->n; i++)
        if (memcmp(&all->entry[i].shape, shape, sizeof *shape) == 0) return &all->entry[i];
    return NULL;
}

Err attention_choice_put(AttentionTable *all, const AttentionKey *shape, AttentionKernels by)
{
    AttentionEntry *entry = lookup(all, shape);
    if (!entry && all->n == all->cap) {
        const int cap = all->cap ? 2 * all->cap : 16;
        AttentionEntry *more = realloc(all->entry, sizeof *more * (size_t)cap);
        if (!more) return err_fail(ERR_NOMEM, "cuda: no memory for %d attention shapes", cap);
        all->entry = more;
        all->cap = cap;
    }
    if (!entry) entry = &all->entry[all->n++];
    *entry = (AttentionEntry){*shape, by};
    return OK;
}

void attention_choice_close(AttentionTable *all) { free(all->entry); }

static bool overwrites(const Call *call, bool backward)
{
    const int n = backward ? 3 : 1;
    for (int i = 0; i < n; i++)
        if (call->number[i] != 0) return false;
    return true;
}

typedef struct {
    const Call *call;
    bool backward;
} ChoiceCall;

static Err run_by(const void *timed, AttentionKernels by)
{
    const ChoiceCall *t = timed;
    return attention_run_by(by, t->call, t->backward)(t->call);
}

static Err run_hopper(const void *timed) { return run_by(timed, BY_HOPPER); }
static Err run_cudnn(const void *timed) { return run_by(timed, BY_CUDNN); }
static Err run_generic(const void *timed) { return run_by(timed, BY_GENERIC); }

/* The mask that a call is promised to have, on the device. Its own may not be there yet. Without
 * memory for it out->data is NULL: a run does not fail because it cannot time. */
static Err promised_ranges(const Call *call, Tensor *out)
{
    const int64_t rows = call->in[0].n[0], length = call->attr.attention.causal;
    const size_t bytes = (size_t)rows * 4 * sizeof(int32_t);
    int32_t *host = calloc(1, bytes);
    *out = (Tensor){.dtype = I32, .ndim = 2, .n = {rows, 4}, .stride = {4, 1}};
    if (!host) return OK;
    for (int64_t t = 0; t < rows; t++) {
        host[4 * t] = (int32_t)(t - t % length);
        host[4 * t + 1] = (int32_t)(t + 1);
    }
    const Err err = cuda_borrow(call->queue->context, bytes, &out->data);
    cudaError_t status = cudaSuccess;
    if (out->data) /* in the queue's order, which does not wait for cudaMemcpy's */
        status =
            cudaMemcpyAsync(out->data, host, bytes, cudaMemcpyHostToDevice, call->queue->stream);
    if (out->data && status == cudaSuccess) status = cudaStreamSynchronize(call->queue->stream);
    free(host);
    TRY(err);
    return status == cudaSuccess ? OK : cuda_failed(status, "cudaMemcpyAsync");
}

static Err measure(const Call *call, bool backward, const AttentionKey *shape)
{
    static const FusionRun run[N_ATTENTION_KERNELS] = {NULL, run_hopper, run_cudnn, run_generic};
    Call masked = *call;
    const ChoiceCall timed = {&masked, backward};
    Autotuner *all = call->queue->context->autotuner;
    FusionRun candidate[N_ATTENTION_KERNELS];
    AttentionKernels by[N_ATTENTION_KERNELS];
    int n = 0, fastest = 0;
    for (int i = BY_HOPPER; i < N_ATTENTION_KERNELS; i++) {
        if (i == BY_GENERIC && n > 0 && by[0] == BY_HOPPER) break;
        if (!attention_run_by((AttentionKernels)i, call, backward)) continue;
        candidate[n] = run[i];
        by[n++] = (AttentionKernels)i;
    }
    const bool promised = n > 1 && call->attr.attention.causal > 0;
    if (promised) TRY(promised_ranges(call, &masked.in[3]));
    if (promised && !masked.in[3].data) return OK; /* the first kernels that can run the call do */
    Err err = n > 1 ? autotuner_fastest(call->queue, candidate, n, &timed, &fastest) : OK;
    if (promised) TRY(cuda_return(masked.in[3].data));
    TRY(err);
    return attention_choice_put(&all->attention, shape, by[fastest]);
}

/* The kernels that run the call. */
static AttentionKernels choice_of(const Call *call, bool backward)
{
    const DeviceContext *c = call->queue->context;
    const AttentionKey shape = shape_of(c, call, backward);
    const AttentionEntry *entry = lookup(&c->autotuner->attention, &shape);
    if (entry && attention_run_by(entry->by, call, backward)) return entry->by;
    for (int i = BY_HOPPER; i < BY_GENERIC; i++)
        if (attention_run_by((AttentionKernels)i, call, backward)) return (AttentionKernels)i;
    return BY_GENERIC;
}

Err attention_choice_run(const Call *call, bool backward)
{
    const DeviceContext *c = call->queue->context;
    const AttentionKey shape = shape_of(c, call, backward);
    if (c->autotuner->measuring && overwrites(call, backward) &&
        !lookup(&c->autotuner->attention, &shape))
        TRY(measure(call, backward, &shape));
    const AttentionKernels by = choice_of(call, backward);
    if (by == BY_GENERIC) cudnn_report(c->cudnn, call, backward);
    return attention_run_by(by, call, backward)(call);
}
