/* transport.c -- NCCL as a comm's mover: what is begun, met, launched and waited for. */
#include "comm/nccl/channels.h"

static DeviceQueue *compute(const Comm *c)
{
    return c->device.runtime->queue(c->device.context, QUEUE_COMPUTE);
}

/* All names in the one order that every rank sorts them into, each once. */
static int sort_names(WayName *name, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int at = kept;
        const WayName x = name[i];
        while (at > 0 && way_order(&x, &name[at - 1]) < 0) at--;
        if (at > 0 && way_order(&x, &name[at - 1]) == 0) continue;
        for (int k = kept++; k > at; k--) name[k] = name[k - 1];
        name[at] = x;
    }
    return kept;
}

static Err transport_prepare(Comm *c, const Transfer *t, int n)
{
    WayName *name;
    Way *w;
    TRY(ARENA_NEW(c->arena, n + 1, &name));
    for (int i = 0; i < n; i++) name[i] = way_name(&t[i], c->set.rank);
    const int ways = sort_names(name, n);
    for (int i = 0; i < ways; i++)
        if (!way_of(c, name[i].t)) TRY(way_open(c, &name[i], &w));
    return OK;
}

/* A group of one needs nobody: its way is opened here. */
static Err find_way(Comm *c, const Pending *p, Way **out)
{
    const WayName own = way_name(&p->t, c->set.rank);
    char name[TRANSFER_NAME_BYTES];
    *out = p->stream->way;
    if (*out) return OK;
    if (own.pair[0] >= 0 && own.pair[0] == own.pair[1])
        return err_fail(ERR_CHECK, "nccl: %s: a rank sends memory of its device to itself; copy it",
                        transfer_name(&p->t, p->sequence, name));
    if (p->t.group.n == 1) return way_open(c, &own, out);
    return err_fail(ERR_CHECK,
                    "nccl: %s: nobody has prepared its group; name it to comm_prepare before",
                    transfer_name(&p->t, p->sequence, name));
}

static Err transport_begin(Comm *c, int slot)
{
    Nccl *n = c->transport_state;
    Way *w;
    if (c->aborted)
        return err_fail(ERR_PEER, "nccl: rank %d: its communicators were given up", c->set.rank);
    TRY(find_way(c, &c->pending[slot], &w));
    TRY(launch_room(c, slot, w));
    if (!n->ready[slot]) TRY(c->device.runtime->event_open(c->device.context, &n->ready[slot]));
    return c->device.runtime->record(compute(c), n->ready[slot]);
}

static Launch *launch_of(Way *w, int64_t sequence) { return &w->launch[sequence % WAY_RING]; }

static Err begin_launch(Comm *c, int slot, Way *w, bool *in_progress)
{
    const Pending *p = &c->pending[slot];
    Launch *l = launch_of(w, p->sequence);
    l->t = p->t;
    l->sequence = p->sequence;
    l->at_s = comm_now_s();
    l->recorded = false;
    TRY(c->device.runtime->wait(w->queue, ((Nccl *)c->transport_state)->ready[slot]));
    w->busy = slot;
    return launch(c, slot, w, in_progress);
}

/* Is what was launched in the queue? */
static Err look(const Comm *c, const Way *w, bool *in_progress)
{
    NcclResult state = NCCL_OK;
    TRY(nccl_ok(c, w, api_of(c)->CommGetAsyncError(w->comm, &state), "ask for errors"));
    *in_progress = state == NCCL_IN_PROGRESS;
    return nccl_ok(c, w, state, "launch");
}

static Err transport_launch(Comm *c, int slot, bool *over)
{
    const Pending *p = &c->pending[slot];
    Way *w = p->stream->way;
    bool in_progress = true;
    if (c->aborted || !w->comm) return err_fail(ERR_PEER, "nccl: rank %d gave up", c->set.rank);
    if (w->busy != slot) {
        if (w->busy >= 0 || p->sequence != w->next_sequence) return OK; /* not its turn */
        TRY(begin_launch(c, slot, w, &in_progress));
    } else {
        TRY(look(c, w, &in_progress));
    }
    if (in_progress) return OK;
    Launch *l = launch_of(w, p->sequence);
    TRY(launch_rest(c, slot, w));
    TRY(c->device.runtime->record(w->queue, l->done));
    l->recorded = true;
    w->busy = -1;
    w->next_sequence++;
    *over = true;
    return OK;
}

/* A ring's entry may have been taken again since: then `done` is of a later one, behind this in the
 * queue; and that one waits for nothing that this rank's compute queue does after now. */
static Err transport_wait(Comm *c, int slot)
{
    const Pending *p = &c->pending[slot];
    const Launch *l = launch_of(p->stream->way, p->sequence);
    return c->device.runtime->wait(compute(c), l->done);
}

static void transport_group_end(Comm *c, Stream *s) { way_close(c, s->way); }

static void transport_release(Comm *c)
{
    Nccl *n = c->transport_state;
    while (n->ways) way_close(c, n->ways);
    for (int i = 0; i < c->set.in_flight; i++) {
        if (n->ready[i]) c->device.runtime->event_close(n->ready[i]);
        n->ready[i] = NULL;
    }
}

const DeviceTransport nccl_transport = {.name = "nccl",
                              .prepare = transport_prepare,
                              .begin = transport_begin,
                              .launch = transport_launch,
                              .wait = transport_wait,
                              .poll = nccl_poll,
                              .overdue = nccl_overdue,
                              .abort = nccl_abort,
                              .group_end = transport_group_end,
                              .release = transport_release};
