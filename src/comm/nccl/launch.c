/* launch.c -- a transfer as calls of NCCL.
 *
 *     all-reduce, broadcast       one call
 *     all-gather, reduce-scatter  one call if all parts are equal, else one per part:
 *                                 broadcasts from each member, reductions to each
 *     all-to-all                  sends and receives of all parts
 *     send, recv                  on the pair's own communicator: the sender is 0, the receiver 1
 *     a maximum                   gathered in scratch memory, then folded by the device
 *
 * The calls of one transfer are between ncclGroupStart and ncclGroupEnd: NCCL launches them as
 * one. */
#include "comm/nccl/channels.h"

typedef struct {
    Comm *c;
    const Transfer *t;
    NcclChannel *ch;
    const NcclApi *api;
    NcclType type;
    size_t each;
    const char *from; /* NULL: another rank's memory */
    char *to;
} NcclCall;

static NcclType type_of(DType t)
{
    static const NcclType type[N_DTYPES] = {
        [F64] = NCCL_F64, [F32] = NCCL_F32, [BF16] = NCCL_BF16, [E4M3] = NCCL_U8,
        [E5M2] = NCCL_U8, [I32] = NCCL_I32, [I64] = NCCL_I64};
    return type[t];
}

static NcclCall call_of(Comm *c, int slot, NcclChannel *ch)
{
    const Transfer *t = &c->pending[slot].t;
    const DType dtype = transfer_writes(t) ? t->to.dtype : t->from.dtype;
    return (NcclCall){.c = c,
                      .t = t,
                      .ch = ch,
                      .api = api_of(c),
                      .type = type_of(dtype),
                      .each = dtype_bytes(dtype),
                      .from = transfer_reads(t, c->set.rank) ? comm_at(c, &t->from) : NULL,
                      .to = transfer_writes(t) ? comm_at(c, &t->to) : NULL};
}

static Err call_ok(const NcclCall *k, NcclResult result, const char *call)
{
    return nccl_ok(k->c, k->ch, result, call);
}

/* A part of `from` or `to`: its offset in bytes, its number of elements. */
typedef struct {
    size_t at, count;
} SideRange;

static SideRange range_of(const NcclCall *k, const int64_t *counts, const Ref *side, int place)
{
    return (SideRange){(size_t)part_start(counts, side->count, k->ch->n, place) * k->each,
                       (size_t)part_count(counts, side->count, k->ch->n, place)};
}

static bool alike(const int64_t *counts, int n)
{
    for (int i = 1; counts && i < n; i++)
        if (counts[i] != counts[0]) return false;
    return true;
}

static Err gather(const NcclCall *k)
{
    const NcclChannel *ch = k->ch;
    if (alike(k->t->to_counts, ch->n))
        return call_ok(k,
                       k->api->AllGather(k->from, k->to, (size_t)k->t->from.count, k->type,
                                         ch->comm, ch->native),
                       "all-gather");
    for (int i = 0; i < ch->n; i++) {
        const SideRange p = range_of(k, k->t->to_counts, &k->t->to, i);
        const void *from = i == ch->me ? k->from : k->to + p.at; /* read on the root only */
        if (p.count > 0)
            TRY(call_ok(
                k, k->api->Broadcast(from, k->to + p.at, p.count, k->type, i, ch->comm, ch->native),
                "broadcast a part"));
    }
    return OK;
}

static Err scatter(const NcclCall *k)
{
    const NcclChannel *ch = k->ch;
    if (alike(k->t->from_counts, ch->n))
        return call_ok(k,
                       k->api->ReduceScatter(k->from, k->to, (size_t)k->t->to.count, k->type,
                                             NCCL_SUM, ch->comm, ch->native),
                       "reduce-scatter");
    for (int i = 0; i < ch->n; i++) {
        const SideRange p = range_of(k, k->t->from_counts, &k->t->from, i);
        void *to = i == ch->me ? k->to : NULL; /* written on the root only */
        if (p.count > 0)
            TRY(call_ok(k,
                        k->api->Reduce(k->from + p.at, to, p.count, k->type, NCCL_SUM, i, ch->comm,
                                       ch->native),
                        "reduce a part"));
    }
    return OK;
}

/* Sends part i of `from` to member i, and receives part i of `to` from it. */
static Err exchange(const NcclCall *k)
{
    const NcclChannel *ch = k->ch;
    for (int i = 0; i < ch->n; i++) {
        const SideRange gives = range_of(k, k->t->from_counts, &k->t->from, i);
        const SideRange takes = range_of(k, k->t->to_counts, &k->t->to, i);
        if (gives.count > 0)
            TRY(call_ok(
                k, k->api->Send(k->from + gives.at, gives.count, k->type, i, ch->comm, ch->native),
                "send a part"));
        if (takes.count > 0)
            TRY(call_ok(
                k, k->api->Recv(k->to + takes.at, takes.count, k->type, i, ch->comm, ch->native),
                "receive a part"));
    }
    return OK;
}

/* Elements of a maximum that this member keeps: each member contributes as many. */
static size_t kept(const NcclCall *k) { return (size_t)k->t->to.count; }

static Err gather_for_maximum(const NcclCall *k)
{
    const NcclChannel *ch = k->ch;
    char *scratch = ch->scratch;
    if (kept(k) > 0 && k->t->kind == COMM_ALL_REDUCE)
        return call_ok(k,
                       k->api->AllGather(k->from, scratch, kept(k), k->type, ch->comm, ch->native),
                       "all-gather");
    for (int i = 0; k->t->kind == COMM_REDUCE_SCATTER && i < ch->n; i++) {
        const SideRange gives = range_of(k, k->t->from_counts, &k->t->from, i);
        if (gives.count > 0)
            TRY(call_ok(
                k, k->api->Send(k->from + gives.at, gives.count, k->type, i, ch->comm, ch->native),
                "send a part"));
        if (kept(k) > 0)
            TRY(call_ok(k,
                        k->api->Recv(scratch + (size_t)i * kept(k) * k->each, kept(k), k->type, i,
                                     ch->comm, ch->native),
                        "receive a part"));
    }
    return OK;
}

static bool is_maximum(const Transfer *t)
{
    return t->reduce == REDUCE_MAX &&
           (t->kind == COMM_ALL_REDUCE || t->kind == COMM_REDUCE_SCATTER);
}

static Err call(const NcclCall *k)
{
    const NcclChannel *ch = k->ch;
    if (is_maximum(k->t)) return gather_for_maximum(k);
    switch (k->t->kind) {
    case COMM_ALL_REDUCE:
        return call_ok(k,
                       k->api->AllReduce(k->from, k->to, (size_t)k->t->to.count, k->type, NCCL_SUM,
                                         ch->comm, ch->native),
                       "all-reduce");
    case COMM_ALL_GATHER:
        return gather(k);
    case COMM_REDUCE_SCATTER:
        return scatter(k);
    case COMM_ALL_TO_ALL:
        return exchange(k);
    case COMM_SEND:
        return call_ok(
            k, k->api->Send(k->from, (size_t)k->t->from.count, k->type, 1, ch->comm, ch->native),
            "send");
    case COMM_RECV:
        return call_ok(
            k, k->api->Recv(k->to, (size_t)k->t->to.count, k->type, 0, ch->comm, ch->native),
            "receive");
    default:
        return call_ok(k,
                       k->api->Broadcast(k->from ? k->from : k->to, k->to, (size_t)k->t->to.count,
                                         k->type, group_index(k->t->group, k->t->from.rank),
                                         ch->comm, ch->native),
                       "broadcast");
    }
}

Err launch_reserve(Comm *c, const Transfer *t, NcclChannel *ch)
{
    const size_t each = (size_t)t->to.count * dtype_bytes(t->to.dtype);
    return is_maximum(t) ? nccl_reserve(c, ch, each * (size_t)ch->n) : OK;
}

Err nccl_reserve(Comm *c, NcclChannel *ch, size_t bytes)
{
    const DeviceRuntime *rt = c->device.runtime;
    if (bytes <= ch->scratch_bytes) return OK;
    TRY(comm_sync(c, c->device, ch->queue)); /* a running transfer may use the old memory */
    if (ch->scratch) rt->free(c->device.context, ch->scratch);
    ch->scratch = NULL;
    ch->scratch_bytes = 0;
    TRY(rt->alloc(c->device.context, bytes, &ch->scratch));
    ch->scratch_bytes = bytes;
    return OK;
}

/* True if no member has elements to move: then all members skip the launch. */
static bool is_empty(const Transfer *t)
{
    if (t->kind == COMM_ALL_TO_ALL) return false; /* known only to the two members of a part */
    return (t->kind == COMM_SEND || t->kind == COMM_REDUCE_SCATTER ? t->from.count : t->to.count) ==
           0;
}

Err launch(Comm *c, int slot, NcclChannel *ch, bool *in_progress)
{
    const NcclCall k = call_of(c, slot, ch);
    *in_progress = false;
    if (is_empty(k.t)) return OK;
    TRY(c->device.runtime->native(ch->queue,
                                  &ch->native)); /* also makes its GPU current on this thread */
    TRY(call_ok(&k, k.api->GroupStart(), "begin a group"));
    const Err err = call(&k);
    const NcclResult ended =
        k.api->GroupEnd(); /* must follow every GroupStart, also after an error */
    TRY(err);
    *in_progress = ended == NCCL_IN_PROGRESS;
    return call_ok(&k, ended, "launch");
}

/* A fold takes MAX_DEVICE_FOLD inputs: more members are folded in groups, left to right. */
Err launch_finish(Comm *c, int slot, NcclChannel *ch)
{
    const NcclCall k = call_of(c, slot, ch);
    const void *x[MAX_DEVICE_FOLD];
    void *out = k.to;
    if (!is_maximum(k.t) || kept(&k) == 0) return OK;
    for (int first = 0; first < ch->n; first += MAX_DEVICE_FOLD - 1) {
        int n = 0;
        if (first > 0) x[n++] = out; /* the result of the groups before */
        for (int i = first; i < ch->n && i < first + MAX_DEVICE_FOLD - 1; i++)
            x[n++] = (char *)ch->scratch + (size_t)i * kept(&k) * k.each;
        const DeviceFold fold = {.dtype = k.t->to.dtype,
                                 .max = true,
                                 .n = n,
                                 .n_out = 1,
                                 .x = x,
                                 .out = &out,
                                 .count = k.t->to.count};
        TRY(c->device.runtime->fold(ch->queue, &fold));
    }
    return OK;
}
