/* local.c -- the CommTable of thread-ranks; local_parts.h has the drawing. */
#include "comm/local/local_parts.h"

#include <string.h>

/* An error of this rank aborts the world. Cancels before it returns: the caller may free memory. */
static Err fail_world(Comm *c, Err err)
{
    LocalComm *l = c->state;
    if (!world_failed(l->world)) world_fail(l->world, c->set.rank, err_text());
    char text[COMM_TEXT_BYTES];
    strcpy(text, err_text());
    cancel_all(c);
    return err_fail(err, "%s", text);
}

static Err fail_by_peer(Comm *c)
{
    LocalComm *l = c->state;
    cancel_all(c);
    return world_error(l->world);
}

/* ERR_CHECK for a send or receive of this rank with itself whose other half was not begun: the only
 * thread that could begin it waits here. */
static Err self_pair_check(const Comm *c, int slot)
{
    const LocalComm *l = c->state;
    const PendingTransfer *p = &c->pending[slot];
    const Channel *ch = l->flight[slot].member->channel;
    char name[TRANSFER_NAME_BYTES];
    if (ch->from < 0 || ch->from != ch->to) return OK;
    int seen = 0;
    if (all_posted(&l->flight[slot], p->sequence, &seen)) return OK;
    const CommKind other = p->t.kind == COMM_SEND ? COMM_RECV : COMM_SEND;
    for (int i = 0; i < c->set.in_flight; i++) {
        const PendingTransfer *q = &c->pending[i];
        if (q->busy && q->t.kind == other && q->sequence == p->sequence &&
            l->flight[i].member->channel == ch)
            return OK;
    }
    return err_fail(
        ERR_CHECK,
        "local: %s has no %s to meet on its group, and none can come from the rank that "
        "waits; begin both before waiting for either",
        transfer_name(&p->t, p->sequence, name), comm_kind_name(other));
}

static Err local_wait(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    if (f->state == FINISHED && c->pending[slot].progress != DONE) return world_error(l->world);
    if (f->state != FINISHED) {
        TRY(self_pair_check(c, slot));
        atomic_store_explicit(&l->self->waits, slot, memory_order_relaxed);
        const Err err = wait_over(c, slot);
        atomic_store_explicit(&l->self->waits, -1, memory_order_relaxed);
        if (err != OK)
            return world_failed(l->world) && err == ERR_PEER ? fail_by_peer(c) : fail_world(c, err);
    }
    if (f->device) return device_deliver(c, slot);
    if (c->set.hostile) hostile_deliver(c, slot);
    return OK;
}

static Err local_poll(Comm *c)
{
    LocalComm *l = c->state;
    bool moved = false;
    if (world_failed(l->world)) return fail_by_peer(c);
    if (l->active == 0) return OK;
    const Err err = advance_all(c, &moved);
    return err == OK ? OK : fail_world(c, err);
}

static Err member_of(Comm *c, int slot, ChannelMember **out)
{
    LocalComm *l = c->state;
    MatchChannel *s = c->pending[slot].channel;
    if (!s->backend) {
        ChannelMember *k = l->spare;
        if (k)
            l->spare = k->next;
        else
            TRY(ARENA_NEW(c->arena, 1, &k));
        *k = (ChannelMember){.free_below = RING};
        TRY(channel_attach(l->world, &c->pending[slot].t, c->set.rank, &k->channel, &k->place));
        s->backend = k;
    }
    *out = s->backend;
    return OK;
}

static void local_end(Comm *c, MatchChannel *s)
{
    LocalComm *l = c->state;
    ChannelMember *k = s->backend;
    channel_end(l->world, k->channel, k->place);
    k->next = l->spare;
    l->spare = k;
    s->backend = NULL;
}

static void publish(const PendingTransfer *p, Channel *ch, PublishedTransfer *out)
{
    atomic_store_explicit(&out->number, p->number, memory_order_relaxed);
    atomic_store_explicit(&out->sequence, p->sequence, memory_order_relaxed);
    atomic_store_explicit(&out->kind, (int)p->t.kind, memory_order_relaxed);
    atomic_store_explicit(&out->instr, p->t.instr, memory_order_relaxed);
    atomic_store_explicit(&out->channel, ch, memory_order_relaxed);
}

static bool on_device(const Comm *c, int slot)
{
    return c->pending[slot].on_device && !c->pending[slot].by_transport && !comm_is_staged(c);
}

/* Device memory is advanced at once, so that its queues start early, and so is a hostile comm;
 * other transfers advance in waits and polls. */
static Err local_begin(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    ChannelMember *k;
    if (world_failed(l->world)) return fail_by_peer(c);
    TRY(member_of(c, slot, &k));
    *f = (LocalFlight){.state = UNPOSTED,
                       .member = k,
                       .device = on_device(c, slot),
                       .by_transport = c->pending[slot].by_transport};
    publish(&c->pending[slot], k->channel, &l->self->flight[slot]);
    publish(&c->pending[slot], k->channel, &l->self->latest);
    if (c->set.hostile) TRY(hostile_begin(c, slot));
    l->active++;
    bool posted = false;
    if (!f->late) TRY(post_when_free(c, slot, &posted));
    if (posted) {
        bool moved = c->set.hostile || f->device || f->by_transport;
        while (moved && f->state != FINISHED) {
            moved = false;
            const Err err = advance(c, slot, &moved);
            if (err != OK) return fail_world(c, err);
        }
        return OK;
    }
    atomic_fetch_add(&k->channel->unposted, 1);
    return OK;
}

static void local_abort(Comm *c, Err err, const char *message)
{
    LocalComm *l = c->state;
    (void)err;
    world_fail(l->world, c->set.rank, message);
    cancel_all(c);
}

static void local_close(Comm *c)
{
    LocalComm *l = c->state;
    char text[COMM_TEXT_BYTES];
    if (comm_unfinished(c, text) && !world_failed(l->world))
        world_fail(l->world, c->set.rank, text);
    cancel_all(c);
    atomic_store(&l->self->state, RANK_LEFT);
    if (c->set.hostile) arena_close(&l->staging);
    if (l->own_world) comm_world_stop(&l->world->base);
}

static const CommTable local_table = {.name = "local",
                                      .moves_device_memory = true,
                                      .begin = local_begin,
                                      .wait = local_wait,
                                      .close = local_close,
                                      .poll = local_poll,
                                      .end = local_end,
                                      .abort = local_abort};

/* The published transfers are in the world's memory: other ranks may read them after this one has
 * left. */
static Err join_world(LocalComm *l, const CommSettings *set)
{
    LocalRank *s = l->self;
    Err err = OK;
    pthread_mutex_lock(&l->world->lock);
    if (atomic_load(&s->state) != RANK_ABSENT)
        err = err_fail(ERR_CONFIG, "local: rank %d has joined its world before", set->rank);
    else
        err = ARENA_NEW(&l->world->arena, set->in_flight, &s->flight);
    if (err == OK) {
        s->flights = set->in_flight;
        atomic_store(&s->state, RANK_JOINED);
    }
    pthread_mutex_unlock(&l->world->lock);
    return err;
}

Err world_join(CommWorld *base, Arena *a, const CommSettings *set, Comm **out)
{
    LocalWorld *w = (LocalWorld *)base;
    LocalComm *l;
    Comm *c;
    if (set->ranks != w->base.ranks || set->rank < 0 || set->rank >= w->base.ranks)
        return err_fail(ERR_CONFIG, "local: rank %d of %d ranks in a world of %d", set->rank,
                        set->ranks, w->base.ranks);
    TRY(ARENA_NEW(a, 1, &l));
    l->world = w;
    l->self = &w->rank[set->rank];
    TRY(comm_open(a, set, &local_table, l, &c));
    TRY(ARENA_NEW(a, set->in_flight, &l->flight));
    TRY(ARENA_NEW(a, set->ranks, &l->source));
    l->random = random_named(set->seed + (uint64_t)set->rank, "hostile transfers");
    if (set->hostile) TRY(arena_open(&l->staging, "staged transfers", ARENA_PLENTY));
    const Err err = join_world(l, set);
    if (err != OK) {
        arena_close(&l->staging);
        return err;
    }
    *out = c;
    return OK;
}

Err local_open(Arena *a, const CommSettings *set, Comm **out)
{
    CommWorld *w;
    if (set->ranks != 1 || set->rank != 0)
        return err_fail(ERR_CONFIG,
                        "local: rank %d of %d ranks in a world of its own; several ranks join a "
                        "world that they share",
                        set->rank, set->ranks);
    TRY(local_start(1, &w));
    const Err err = comm_join(w, a, set, out);
    if (err != OK) {
        comm_world_stop(w);
        return err;
    }
    ((LocalComm *)(*out)->state)->own_world = true;
    return OK;
}
