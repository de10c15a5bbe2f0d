/* mailbox.c -- the pinned block through which host and device exchange inputs, losses and scalars.
 *
 *     offset in the step arena   start           loss                  scalars_at
 *                                | inputs        | losses, cells       | StepScalars
 *     mailbox_send               | ------------> |                     | mean, rates ->
 *     mailbox_send_factor        |               |                     | factor, norm ->
 *     mailbox_fetch              |               | <------------------ | <-
 *
 * Transfers of scalars between ranks use the host's block. */
#include <stddef.h>
#include <string.h>

#include "run/rank_parts.h"

_Static_assert(sizeof(StepScalars) <= ARENA_ALIGN, "StepScalars exceeds its one line");

/* Behind the arena, if linking made no room in it. */
static size_t scalars_at(const Rank *r)
{
    const size_t at = r->settings.program->device_scalars;
    return at == NO_BASE ? memory_arena_bytes(r, ARENA_STEP) : at;
}

size_t mailbox_bytes(const Rank *r) { return memory_arena_bytes(r, ARENA_STEP) - r->mailbox.start; }

Err mailbox_open(Rank *r)
{
    RankMailbox *m = &r->mailbox;
    const size_t bytes = scalars_at(r) + ARENA_ALIGN - m->start;
    void *base;
    TRY(r->runtime->alloc_host(r->context, bytes, &base));
    memset(base, 0, bytes);
    m->base = base;
    return r->runtime->event_open(r->context, &m->sent);
}

void mailbox_close(Rank *r)
{
    if (r->mailbox.base) r->runtime->free_host(r->context, r->mailbox.base);
    if (r->mailbox.sent) r->runtime->event_close(r->mailbox.sent);
}

/* The inputs are copied in the host-to-device queue, at once. The scalars follow the compute queue,
 * because updates of the previous step may still read theirs. */
Err mailbox_send(Rank *r)
{
    const RankMailbox *m = &r->mailbox;
    if (!r->runtime) return OK;
    DeviceQueue *q = r->runtime->queue(r->context, QUEUE_H2D);
    TRY(r->runtime->copy(q, r->base[ARENA_STEP] + m->start, m->base,
                         r->settings.program->loss - m->start));
    TRY(r->runtime->record(q, m->sent));
    TRY(r->runtime->copy(r->queue, &device_scalars(r)->mean, &mailbox_scalars(r)->mean,
                         sizeof(StepScalars) - offsetof(StepScalars, mean)));
    return r->runtime->wait(r->queue, m->sent);
}

Err mailbox_send_factor(Rank *r)
{
    return r->runtime->copy(r->queue, device_scalars(r), mailbox_scalars(r),
                            offsetof(StepScalars, mean));
}

Err mailbox_fetch(Rank *r)
{
    const size_t loss = r->settings.program->loss;
    if (!r->runtime) return OK;
    TRY(r->runtime->copy(r->queue, mailbox_at(r, loss), r->base[ARENA_STEP] + loss,
                         scalars_at(r) + ARENA_ALIGN - loss));
    return memory_sync(r);
}

StepScalars *mailbox_scalars(const Rank *r)
{
    return (StepScalars *)(void *)mailbox_at(r, scalars_at(r));
}

StepScalars *device_scalars(const Rank *r)
{
    return (StepScalars *)(void *)(r->base[ARENA_STEP] + scalars_at(r));
}
