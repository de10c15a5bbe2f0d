/* channels.c -- opens and closes channels; channels.h has the drawing.
 *
 *     member 0   ncclGetUniqueId
 *     all        broadcast of the id by the backend -> ncclCommInitRankConfig -> all have joined */
#define _GNU_SOURCE
#include "comm/nccl/channels.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"

enum {
    ID_PURPOSE = INT_MIN + 1
}; /* a separate group: the caller's sequence numbers do not change */

NcclChannel *nccl_channel_find(const Comm *c, const Transfer *t)
{
    GroupRow *g = group_find((Comm *)(uintptr_t)c, t->group, t->purpose);
    return g ? group_channel(g, t)->transport : NULL;
}

/* Uses the message buffer of comm_agree, which is free: both are collective, on one thread. */
static Err broadcast_id(Comm *c, const ChannelKey *name, NcclId *id)
{
    const RankList members = channel_members(name);
    char *buffer = c->memory[COMM_OWN].base + c->memory[COMM_OWN].bytes - COMM_TEXT_BYTES;
    const Ref at = {members.rank[0], COMM_OWN, (size_t)(buffer - c->memory[COMM_OWN].base),
                    sizeof *id / 4, I32};
    Transfer t = {.kind = COMM_BROADCAST,
                  .group = members,
                  .purpose = ID_PURPOSE,
                  .from = at,
                  .to = at,
                  .instr = -1,
                  .scalar = true};
    t.to.rank = c->set.rank;
    memcpy(buffer, id, sizeof *id);
    TRY(comm_do(c, &t));
    memcpy(id, buffer, sizeof *id);
    return comm_group_end(c, members, ID_PURPOSE);
}

/* NCCL works on its own thread; the comm is polled for failures of other ranks. */
static Err await_members(Comm *c, NcclChannel *ch, const ChannelKey *name)
{
    const double since_s = now_s();
    const RankList members = channel_members(name);
    for (;;) {
        NcclResult state = NCCL_OK;
        TRY(nccl_ok(c, ch, api_of(c)->CommGetAsyncError(ch->comm, &state), "query errors"));
        if (state != NCCL_IN_PROGRESS) return nccl_ok(c, ch, state, "meet the members of a group");
        TRY(c->table->poll ? c->table->poll(c) : OK);
        const double waited_s = now_s() - since_s;
        if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
            return err_fail(ERR_PEER,
                            "nccl: waited %.1f s (run.timeout_s=%g) for a communicator of "
                            "%d ranks, the first %d, the last %d; NCCL_DEBUG=INFO prints NCCL's "
                            "own log",
                            waited_s, c->set.timeout_s, members.n, members.rank[0],
                            members.rank[members.n - 1]);
        sched_yield();
    }
}

static Err open_queue(Comm *c, NcclChannel *ch)
{
    const DeviceRuntime *rt = c->device.runtime;
    TRY(rt->queue_open(c->device.context, &ch->queue));
    for (int i = 0; i < LAUNCH_RING; i++)
        TRY(rt->event_open(c->device.context, &ch->launch[i].done));
    return rt->native(ch->queue, &ch->native);
}

static Err join(Comm *c, NcclChannel *ch, const ChannelKey *name)
{
    const bool shared = nccl_ranks_here(c) > 1;
    NcclConfig config = {.size = shared ? sizeof config : NCCL_CONFIG_BYTES,
                         .magic = NCCL_CONFIG_MAGIC,
                         .version = shared ? NCCL_CONFIG_SHARED : NCCL_CONFIG_VERSION,
                         .cga_size = NCCL_UNSET,
                         .min_ctas = NCCL_UNSET,
                         .max_ctas = shared ? SHARED_CTAS : NCCL_UNSET,
                         .split_share = NCCL_UNSET};
    NcclId id = {{0}};
    if (ch->me == 0) TRY(nccl_ok(c, ch, api_of(c)->GetUniqueId(&id), "make an id"));
    if (ch->n > 1) TRY(broadcast_id(c, name, &id));
    TRY(nccl_ok(c, ch, api_of(c)->CommInitRankConfig(&ch->comm, ch->n, id, ch->me, &config),
                "open a communicator"));
    return await_members(c, ch, name);
}

Err nccl_channel_open(Comm *c, const ChannelKey *name, NcclChannel **out)
{
    NcclState *n = c->transport_state;
    const RankList members = channel_members(name);
    GroupRow *g;
    NcclChannel *ch = n->spare;
    TRY(group_of(c, name->t->group, name->t->purpose, &g));
    if (ch)
        n->spare = ch->next;
    else
        TRY(ARENA_NEW(c->arena, 1, &ch));
    *ch = (NcclChannel){.next = n->channels, .busy = -1, .n = members.n};
    n->channels = ch; /* linked in first, so that nccl_channel_close finds a half-open one */
    ch->me = group_index(members, c->set.rank);
    ch->match = group_channel(g, name->t);
    ch->next_launch = ch->match->next_launch;
    TRY(open_queue(c, ch));
    TRY(join(c, ch, name));
    ch->match->transport = ch;
    *out = ch;
    return OK;
}

/* The sender of a pair is member 0. */
static Err exchange_bytes(const Comm *c, NcclChannel *ch, bool pair, char *at)
{
    const NcclApi *api = api_of(c);
    NcclComm *comm = ch->comm;
    TRY(nccl_ok(c, ch, api->GroupStart(), "begin a group"));
    Err err = OK;
    for (int i = 0; i < ch->n && err == OK; i++) {
        const bool sends = !pair || (ch->me == 0 && i == 1);
        const bool receives = !pair || (ch->me == 1 && i == 0);
        if (sends) err = nccl_ok(c, ch, api->Send(at, 1, NCCL_U8, i, comm, ch->native), "connect");
        if (receives && err == OK)
            err = nccl_ok(c, ch, api->Recv(at + ch->n + i, 1, NCCL_U8, i, comm, ch->native),
                          "connect");
    }
    const NcclResult ended = api->GroupEnd();
    return err == OK ? nccl_ok(c, ch, ended, "connect") : err;
}

Err nccl_channel_connect(Comm *c, NcclChannel *ch, const ChannelKey *name)
{
    TRY(exchange_bytes(c, ch, name->pair[0] >= 0, ch->scratch));
    TRY(await_members(c, ch, name));
    return comm_sync(c, c->device, ch->queue);
}

/* Flushes launched transfers together with the other members; aborts the communicator if that takes
 * 10 s. */
static void finish(Comm *c, NcclChannel *ch)
{
    const double since_s = now_s();
    NcclResult state = NCCL_IN_PROGRESS;
    const NcclResult finalized = api_of(c)->CommFinalize(ch->comm);
    bool good = finalized == NCCL_OK || finalized == NCCL_IN_PROGRESS;
    while (good && state == NCCL_IN_PROGRESS && now_s() - since_s < 10) {
        good = api_of(c)->CommGetAsyncError(ch->comm, &state) == NCCL_OK;
        sched_yield();
    }
    if (good && state == NCCL_OK)
        (void)api_of(c)->CommDestroy(ch->comm);
    else
        (void)api_of(c)->CommAbort(ch->comm);
    ch->comm = NULL;
}

void nccl_channel_close(Comm *c, NcclChannel *ch)
{
    const DeviceRuntime *rt = c->device.runtime;
    NcclState *n = c->transport_state;
    NcclChannel **at = &n->channels;
    if (ch->comm && !c->transport_aborted) (void)comm_sync(c, c->device, ch->queue);
    if (ch->comm) finish(c, ch);
    for (int i = 0; i < LAUNCH_RING; i++)
        if (ch->launch[i].done) rt->event_close(ch->launch[i].done);
    if (ch->queue) rt->queue_close(ch->queue);
    if (ch->scratch) rt->free(c->device.context, ch->scratch);
    if (ch->match) ch->match->transport = NULL;
    while (*at != ch) at = &(*at)->next;
    *at = ch->next;
    ch->next = n->spare;
    n->spare = ch;
}
