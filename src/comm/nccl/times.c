/* times.c -- when transfers ran on the device, for a trace.
 *
 *     compute   0 | ...... ready | gemm | gemm | ........................ | last: it is now T
 *     channel          wait ready  1 | all-reduce | 2
 *
 * Timestamps are put into the queue around each launch. After the step they are read together, and
 * written into the records of the transfers; the last one is taken as T. */
#include "comm/nccl/channels.h"

#include "base/clock.h"

static NcclTimes *times_of(const Comm *c) { return &((NcclState *)c->transport_state)->times; }

static DeviceQueue *compute(const Comm *c)
{
    return c->device.runtime->queue(c->device.context, QUEUE_COMPUTE);
}

Err times_open(Comm *c, int n)
{
    NcclTimes *t = times_of(c);
    if (t->at || n == 0) return OK;
    TRY(ARENA_NEW(c->arena, n, &t->number));
    TRY(ARENA_NEW(c->arena, 2 * n + 2, &t->seconds));
    t->cap = n;
    return c->device.runtime->timestamps_open(c->device.context, 2 * n + 2, &t->at);
}

Err times_begin(Comm *c)
{
    NcclTimes *t = times_of(c);
    t->n = 0;
    return t->at ? c->device.runtime->timestamp(compute(c), t->at, 0) : OK;
}

Err times_before(Comm *c, NcclChannel *ch, NcclLaunch *l, int64_t number)
{
    NcclTimes *t = times_of(c);
    l->timed = t->at && !c->captures && t->n < t->cap ? t->n++ : -1; /* a graph keeps no times */
    if (l->timed < 0) return OK;
    t->number[l->timed] = number;
    return c->device.runtime->timestamp(ch->queue, t->at, 1 + 2 * l->timed);
}

Err times_after(Comm *c, NcclChannel *ch, const NcclLaunch *l)
{
    if (l->timed < 0) return OK;
    return c->device.runtime->timestamp(ch->queue, times_of(c)->at, 2 + 2 * l->timed);
}

Err times_end(Comm *c)
{
    NcclTimes *t = times_of(c);
    const DeviceRuntime *rt = c->device.runtime;
    const int last = 2 * t->n + 1;
    if (!t->at || t->n == 0) return OK;
    TRY(rt->timestamp(compute(c), t->at, last));
    TRY(comm_sync(c, c->device, compute(c)));
    const double now = now_s() - c->opened_s;
    TRY(rt->timestamps_read(t->at, last + 1, t->seconds));
    for (int i = 0; i < t->n; i++) {
        Record *r = &c->recorder->ring[t->number[i] % c->recorder->cap];
        if (r->number != t->number[i]) continue; /* overwritten by a later one */
        r->matched_s = now - (t->seconds[last] - t->seconds[1 + 2 * i]);
        r->done_s = now - (t->seconds[last] - t->seconds[2 + 2 * i]);
        r->timed = true;
    }
    t->n = 0;
    return OK;
}

void times_close(Comm *c)
{
    NcclTimes *t = times_of(c);
    if (t->at) c->device.runtime->timestamps_close(t->at);
    t->at = NULL;
}
