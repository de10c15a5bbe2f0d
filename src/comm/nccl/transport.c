/* transport.c -- NCCL as a DeviceTransport: begin, launch, wait. */
#include "comm/nccl/channels.h"
#include "base/clock.h"

static DeviceQueue *compute(const Comm *c)
{
    return c->device.runtime->queue(c->device.context, QUEUE_COMPUTE);
}

Err nccl_open_event(Comm *c, int slot)
{
    NcclState *n = c->transport_state;
    if (n->ready[slot]) return OK;
    return c->device.runtime->event_open(c->device.context, &n->ready[slot]);
}

/* A group of one rank needs no other: its channel is opened on demand. */
static Err find_channel(Comm *c, const PendingTransfer *p, NcclChannel **out)
{
    const ChannelKey own = channel_key(&p->t, c->set.rank);
    char name[TRANSFER_NAME_BYTES];
    *out = p->channel->transport;
    if (*out) return OK;
    if (own.pair[0] >= 0 && own.pair[0] == own.pair[1])
        return err_fail(ERR_CHECK, "nccl: %s: a rank sends memory of its device to itself; copy it",
                        transfer_name(&p->t, p->sequence, name));
    if (p->t.group.n == 1) return nccl_channel_open(c, &own, out);
    return err_fail(ERR_CHECK,
                    "nccl: %s: its group was not prepared; pass it to comm_prepare before",
                    transfer_name(&p->t, p->sequence, name));
}

static Err transport_begin(Comm *c, int slot)
{
    NcclState *n = c->transport_state;
    NcclChannel *ch;
    if (c->transport_aborted)
        return err_fail(ERR_PEER, "nccl: rank %d: its communicators were aborted", c->set.rank);
    TRY(find_channel(c, &c->pending[slot], &ch));
    TRY(launch_reserve(c, &c->pending[slot].t, ch));
    TRY(nccl_open_event(c, slot));
    return c->device.runtime->record(compute(c), n->ready[slot]);
}

static NcclLaunch *launch_of(const PendingTransfer *p)
{
    NcclChannel *ch = p->channel->transport;
    return &ch->launch[p->launch % LAUNCH_RING];
}

static Err begin_launch(Comm *c, int slot, NcclChannel *ch, bool *in_progress)
{
    const PendingTransfer *p = &c->pending[slot];
    NcclLaunch *l = launch_of(p);
    l->t = p->t;
    l->sequence = p->sequence;
    l->at_s = now_s();
    l->recorded = false;
    l->captured = c->captures;
    TRY(c->device.runtime->wait(ch->queue, ((NcclState *)c->transport_state)->ready[slot]));
    ch->busy = slot;
    TRY(times_before(c, ch, l, p->number));
    return launch(c, slot, ch, in_progress);
}

/* Checks whether NCCL has put the launch into the queue. */
static Err look(const Comm *c, const NcclChannel *ch, bool *in_progress)
{
    NcclResult state = NCCL_OK;
    TRY(nccl_ok(c, ch, api_of(c)->CommGetAsyncError(ch->comm, &state), "query errors"));
    *in_progress = state == NCCL_IN_PROGRESS;
    return nccl_ok(c, ch, state, "launch");
}

static Err transport_launch(Comm *c, int slot, bool *launched)
{
    const PendingTransfer *p = &c->pending[slot];
    NcclChannel *ch = p->channel->transport;
    bool in_progress = true;
    if (c->transport_aborted || !ch->comm)
        return err_fail(ERR_PEER, "nccl: rank %d: its communicators were aborted", c->set.rank);
    if (ch->busy != slot) {
        if (ch->busy >= 0 || p->launch != ch->next_launch)
            return OK; /* an earlier transfer launches first */
        TRY(begin_launch(c, slot, ch, &in_progress));
    } else {
        TRY(look(c, ch, &in_progress));
    }
    if (in_progress) return OK;
    NcclLaunch *l = launch_of(p);
    TRY(launch_finish(c, slot, ch));
    TRY(times_after(c, ch, l));
    TRY(c->device.runtime->record(ch->queue, l->done));
    l->recorded = true;
    ch->busy = -1;
    ch->next_launch++;
    *launched = true;
    return OK;
}

/* The ring entry may have been reused since. Then `done` belongs to a later launch behind this one
 * in the queue. That launch waits only for earlier work of this rank's compute queue, so this
 * cannot deadlock. */
static Err transport_wait(Comm *c, int slot)
{
    const PendingTransfer *p = &c->pending[slot];
    const NcclLaunch *l = launch_of(p);
    return c->device.runtime->wait(compute(c), l->done);
}

static Err transport_drain(Comm *c)
{
    for (NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next)
        TRY(comm_sync(c, c->device, ch->queue));
    return OK;
}

static void transport_use(const Comm *c, CommDeviceUse *out)
{
    const NcclApi *api = api_of(c);
    for (const NcclChannel *ch = ((NcclState *)c->transport_state)->channels; ch; ch = ch->next) {
        uint64_t bytes = 0;
        const bool known = ch->comm && api->CommMemStats &&
                           api->CommMemStats(ch->comm, NCCL_STAT_TOTAL, &bytes) == NCCL_OK;
        out->channels++;
        out->bytes = known && out->bytes >= 0 ? out->bytes + (int64_t)bytes : -1;
    }
}

static void transport_group_end(Comm *c, MatchChannel *s) { nccl_channel_close(c, s->transport); }

static void transport_release(Comm *c)
{
    NcclState *n = c->transport_state;
    while (n->channels) nccl_channel_close(c, n->channels);
    for (int i = 0; i < c->set.in_flight; i++) {
        if (n->ready[i]) c->device.runtime->event_close(n->ready[i]);
        n->ready[i] = NULL;
    }
    times_close(c);
}

const DeviceTransport nccl_transport = {.name = "nccl",
                                        .prepare = nccl_prepare,
                                        .begin = transport_begin,
                                        .launch = transport_launch,
                                        .wait = transport_wait,
                                        .poll = nccl_poll,
                                        .overdue = nccl_overdue,
                                        .abort = nccl_abort,
                                        .drain = transport_drain,
                                        .times_open = times_open,
                                        .times_begin = times_begin,
                                        .times_end = times_end,
                                        .use = transport_use,
                                        .group_end = transport_group_end,
                                        .release = transport_release};
