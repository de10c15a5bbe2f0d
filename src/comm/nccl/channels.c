/* channels.c -- ways are opened and closed: ways.h has the picture.
 *
 *     member 0   ncclGetUniqueId --+
 *     all        broadcast of the id, by the comm's backend -> ncclCommInitRankConfig -> until all are in
 */
#define _GNU_SOURCE
#include "comm/nccl/channels.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { ID_PURPOSE = INT_MIN + 1 }; /* the caller's sequence numbers do not move */

WayName way_name(const Transfer *t, int rank)
{
    if (t->kind == COMM_SEND) return (WayName){t, {rank, t->to.rank}};
    if (t->kind == COMM_RECV) return (WayName){t, {t->from.rank, rank}};
    return (WayName){t, {-1, -1}};
}

static int compare(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

int way_order(const WayName *a, const WayName *b)
{
    const RankList x = a->t->group, y = b->t->group;
    int order = compare(a->t->purpose, b->t->purpose);
    for (int i = 0; order == 0 && i < 2; i++) order = compare(a->pair[i], b->pair[i]);
    if (order == 0) order = compare(x.n, y.n);
    for (int i = 0; order == 0 && i < x.n; i++) order = compare(x.rank[i], y.rank[i]);
    return order;
}

RankList way_members(const WayName *name)
{
    return name->pair[0] < 0 ? name->t->group : (RankList){2, name->pair};
}

Way *way_of(const Comm *c, const Transfer *t)
{
    GroupRow *g = group_find((Comm *)(uintptr_t)c, t->group, t->purpose);
    return g ? group_stream(g, t)->way : NULL;
}

/* By the comm's own memory, in which errors are told: nobody is in the middle of one. */
static Err spread_id(Comm *c, const WayName *name, NcclId *id)
{
    const RankList members = way_members(name);
    char *room = c->memory[COMM_OWN].base + c->memory[COMM_OWN].bytes - COMM_TEXT_BYTES;
    const Ref at = {members.rank[0], COMM_OWN, (size_t)(room - c->memory[COMM_OWN].base),
                    sizeof *id / 4, I32};
    Transfer t = {.kind = COMM_BROADCAST,
                  .group = members,
                  .purpose = ID_PURPOSE,
                  .from = at,
                  .to = at,
                  .instr = -1,
                  .scalar = true};
    t.to.rank = c->set.rank;
    memcpy(room, id, sizeof *id);
    TRY(comm_do(c, &t));
    memcpy(id, room, sizeof *id);
    return comm_group_end(c, members, ID_PURPOSE);
}

/* NCCL goes on by itself; the comm is polled, in case another rank has failed. */
static Err await_members(Comm *c, Way *w, const WayName *name)
{
    const double since_s = comm_now_s();
    const RankList members = way_members(name);
    for (;;) {
        NcclResult state = NCCL_OK;
        TRY(nccl_ok(c, w, api_of(c)->CommGetAsyncError(w->comm, &state), "ask for errors"));
        if (state != NCCL_IN_PROGRESS) return nccl_ok(c, w, state, "meet the members of a group");
        TRY(c->table->poll ? c->table->poll(c) : OK);
        const double waited_s = comm_now_s() - since_s;
        if (c->set.timeout_s > 0 && waited_s >= c->set.timeout_s)
            return err_fail(ERR_PEER,
                            "nccl: waited %.1f s (run.timeout_s=%g) for a communicator of "
                            "%d ranks, the first %d, the last %d; NCCL_DEBUG=INFO makes NCCL tell "
                            "where it is",
                            waited_s, c->set.timeout_s, members.n, members.rank[0],
                            members.rank[members.n - 1]);
        sched_yield();
    }
}

static Err open_queue(Comm *c, Way *w)
{
    const DeviceRuntime *m = c->device.runtime;
    TRY(m->queue_open(c->device.context, &w->queue));
    for (int i = 0; i < WAY_RING; i++) TRY(m->event_open(c->device.context, &w->launch[i].done));
    return m->native(w->queue, &w->native);
}

static Err join(Comm *c, Way *w, const WayName *name)
{
    NcclConfig config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    NcclId id = {{0}};
    if (w->me == 0) TRY(nccl_ok(c, w, api_of(c)->GetUniqueId(&id), "make an id"));
    if (w->n > 1) TRY(spread_id(c, name, &id));
    TRY(nccl_ok(c, w, api_of(c)->CommInitRankConfig(&w->comm, w->n, id, w->me, &config),
                "open a communicator"));
    return await_members(c, w, name);
}

Err way_open(Comm *c, const WayName *name, Way **out)
{
    Nccl *n = c->transport_state;
    const RankList members = way_members(name);
    GroupRow *g;
    Way *w = n->spare;
    TRY(group_of(c, name->t->group, name->t->purpose, &g));
    if (w)
        n->spare = w->next;
    else
        TRY(ARENA_NEW(c->arena, 1, &w));
    *w = (Way){.next = n->ways, .busy = -1, .n = members.n};
    n->ways = w; /* from here on who closes finds it */
    w->me = group_place(members, c->set.rank);
    w->stream = group_stream(g, name->t);
    w->next_sequence = w->stream->next;
    TRY(open_queue(c, w));
    TRY(join(c, w, name));
    w->stream->way = w;
    *out = w;
    return OK;
}

/* What was launched is flushed, by all members. */
static void finish(Comm *c, Way *w)
{
    const double since_s = comm_now_s();
    NcclResult state = NCCL_IN_PROGRESS;
    const NcclResult asked = api_of(c)->CommFinalize(w->comm);
    bool good = asked == NCCL_OK || asked == NCCL_IN_PROGRESS;
    while (good && state == NCCL_IN_PROGRESS && comm_now_s() - since_s < 10) {
        good = api_of(c)->CommGetAsyncError(w->comm, &state) == NCCL_OK;
        sched_yield();
    }
    if (good && state == NCCL_OK)
        (void)api_of(c)->CommDestroy(w->comm);
    else
        (void)api_of(c)->CommAbort(w->comm);
    w->comm = NULL;
}

void way_close(Comm *c, Way *w)
{
    const DeviceRuntime *m = c->device.runtime;
    Nccl *n = c->transport_state;
    Way **at = &n->ways;
    if (w->comm && !c->aborted) (void)comm_sync(c, c->device, w->queue);
    if (w->comm) finish(c, w);
    for (int i = 0; i < WAY_RING; i++)
        if (w->launch[i].done) m->event_close(w->launch[i].done);
    if (w->queue) m->queue_close(w->queue);
    if (w->scratch) m->free(c->device.context, w->scratch);
    if (w->stream) w->stream->way = NULL;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    w->next = n->spare;
    n->spare = w;
}
