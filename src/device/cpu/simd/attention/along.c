/* along.c -- attention along one of several token dims.
 *
 * Short sequences that follow each other in storage become one call, in which each query sees the
 * keys of its own group: a call per group would have too little work for a team. */
#include "device/along.h"
#include "device/cpu/simd/simd.h"
#include "device/cpu/workspace.h"

enum { SHORT = 256 }; /* tokens of a sequence: longer ones are enough work alone */

static const int32_t all_keys[4] = {0, INT32_MAX, 0, 0};

static bool follow_each_other(const Tensor *x) { return x->stride[0] == x->n[1] * x->stride[1]; }

static bool joins_groups(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    bool joins = q->n[0] > 1 && q->n[1] > 0 && q->n[1] <= SHORT && k->n[1] > 0 &&
                 q->n[0] * max_i64(q->n[1], k->n[1]) < INT32_MAX;
    for (int i = 0; i < call->n_in; i++) joins = joins && follow_each_other(&call->in[i]);
    for (int i = 0; i < call->n_out; i++) joins = joins && follow_each_other(&call->out[i]);
    return joins;
}

/* x[e,b,..] as [1,(e b),..]. */
static void join_groups(Tensor *x)
{
    x->n[1] *= x->n[0];
    x->n[0] = 1;
}

static Err run_joined(const Call *call, Kernel attention)
{
    const int64_t groups = call->in[0].n[0], queries = call->in[0].n[1], keys = call->in[1].n[1];
    Workspace *space;
    Call joined = *call;
    TRY(workspace_take((size_t)(groups * queries) * 4 * sizeof(int32_t), "key ranges", &space));
    int32_t *range = space->at;
    for (int64_t i = 0; i < groups * queries; i++) {
        const int64_t first = i / queries * keys;
        range[4 * i] = (int32_t)first;
        range[4 * i + 1] = (int32_t)(first + keys);
        range[4 * i + 2] = range[4 * i + 3] = 0;
    }
    for (int i = 0; i < call->n_in; i++) join_groups(&joined.in[i]);
    for (int i = 0; i < call->n_out; i++) join_groups(&joined.out[i]);
    const Err err = along_run(&joined, attention, (AlongKeys){.range = range, .step = 4});
    workspace_give(space);
    return err;
}

static Err run(const Call *call, Kernel attention)
{
    if (joins_groups(call)) return run_joined(call, attention);
    return along_run(call, attention, (AlongKeys){.range = all_keys});
}

Err CPU_NAME(attention_along)(const Call *call) { return run(call, CPU_NAME(attention)); }

Err CPU_NAME(attention_along_dx)(const Call *call) { return run(call, CPU_NAME(attention_dx)); }
