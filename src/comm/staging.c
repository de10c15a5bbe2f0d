/* staging.c -- host bounce buffers of device memory, for backends that handle only host memory.
 *
 *     begin   compute | from -> buffer |   the host waits;          then as for host memory
 *     wait    as for host memory; then     compute | buffer -> to | in     the host continues
 *
 * Each slot has its own pinned buffers, which grow to the largest transfer that the slot has
 * had. */
#include "comm/backend.h"

static DeviceQueue *queue_of(const Comm *c, Queue queue)
{
    return c->device.runtime->queue(c->device.context, queue);
}

/* Pinned memory for arena `at`, so that copies are asynchronous and at full speed. */
static Err reserve_buffer(Comm *c, int at, size_t bytes)
{
    void *buffer;
    if (c->memory[at].bytes >= bytes) return OK;
    if (c->memory[at].base) c->device.runtime->free_host(c->device.context, c->memory[at].base);
    c->memory[at].base = NULL;
    c->memory[at].bytes = 0;
    TRY(c->device.runtime->alloc_host(c->device.context, bytes, &buffer));
    c->memory[at].base = buffer;
    c->memory[at].bytes = bytes;
    return OK;
}

/* Copies in the compute queue, after the kernels that write `from`, and waits on the host. */
static Err fetch(Comm *c, const Ref *from, const Ref *buffer)
{
    const DeviceRuntime *rt = c->device.runtime;
    DeviceQueue *compute = queue_of(c, QUEUE_COMPUTE);
    TRY(rt->copy(compute, comm_at(c, buffer), comm_at(c, from), ref_bytes(from)));
    return rt->sync(compute);
}

Err staging_begin(Comm *c, int slot)
{
    Transfer *t = &c->pending[slot].t;
    const int from = COMM_STAGING + 2 * slot, to = from + 1;
    if (!c->staged) TRY(ARENA_NEW(c->arena, c->set.in_flight, &c->staged));
    BounceBuffers *s = &c->staged[slot];
    if (!s->copied_out) TRY(c->device.runtime->event_open(c->device.context, &s->copied_out));
    /* The result of the slot's last transfer may still be on its way out of the buffer. */
    if (s->copy_pending) TRY(c->device.runtime->sync_event(s->copied_out));
    s->copy_pending = false;
    if (transfer_reads(t, c->set.rank)) {
        const Ref buffer = {t->from.rank, from, 0, t->from.count, t->from.dtype};
        TRY(reserve_buffer(c, from, ref_bytes(&buffer) + 1));
        TRY(fetch(c, &t->from, &buffer));
        t->from = buffer;
    }
    s->to = (Ref){.count = 0};
    if (!transfer_writes(t)) return OK;
    s->to = t->to;
    TRY(reserve_buffer(c, to, ref_bytes(&t->to) + 1));
    t->to = (Ref){t->to.rank, to, 0, t->to.count, t->to.dtype};
    return OK;
}

Err staging_end(Comm *c, int slot)
{
    const DeviceRuntime *rt = c->device.runtime;
    BounceBuffers *s = &c->staged[slot];
    DeviceQueue *compute;
    if (!c->pending[slot].on_device || s->to.count == 0) return OK;
    compute = queue_of(c, QUEUE_COMPUTE);
    TRY(rt->copy(compute, comm_at(c, &s->to), comm_at(c, &c->pending[slot].t.to),
                 ref_bytes(&s->to)));
    s->to.count = 0;
    s->copy_pending = true;
    return rt->record(compute, s->copied_out);
}

void staging_close(Comm *c)
{
    const DeviceRuntime *rt = c->device.runtime;
    for (int i = 0; c->staged && i < c->set.in_flight; i++) {
        if (c->staged[i].copy_pending) (void)rt->sync_event(c->staged[i].copied_out);
        if (c->staged[i].copied_out) rt->event_close(c->staged[i].copied_out);
        c->staged[i] = (BounceBuffers){0};
        for (int k = COMM_STAGING + 2 * i; k < COMM_STAGING + 2 * i + 2; k++) {
            if (c->memory[k].base) rt->free_host(c->device.context, c->memory[k].base);
            c->memory[k].base = NULL;
            c->memory[k].bytes = 0;
        }
    }
}
