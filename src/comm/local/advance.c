/* advance.c -- how a transfer moves on, a step at a time.
 *
 *     UNPOSTED   room in the ring?        -> post
 *     WAITING    all members posted?      -> do they mean the same? cut into units
 *     MOVING     a unit to claim?         -> do it
 *     FINISHING  all units done?          -> leave the channel
 *     OVER
 *
 * Each step is a load or two, or one unit of work; none blocks.
 *
 * A rank that gives up may free its memory, so no unit may touch it any more: who claims a unit
 * looks afterwards whether the world has failed, and who gives up, which is after that, waits for
 * the units that were claimed before. */
#define _GNU_SOURCE
#include "comm/local/local_parts.h"

#include <sched.h>
#include <string.h>

/* By what all members agree on. Those of a pair meet anyway; parts of an all-to-all are known to
 * their two members alone. */
static bool is_small(const TransferSignature *m, int n)
{
    const int64_t bytes = m->count * (int64_t)dtype_bytes((DType)m->dtype);
    return m->kind != COMM_SEND && m->kind != COMM_ALL_TO_ALL && bytes <= SMALL_BYTES &&
           bytes * n <= SMALL_WORK;
}

static bool ring_has_room(Link *k, int64_t sequence)
{
    const Channel *ch = k->channel;
    if (sequence < k->room) return true;
    int64_t low = k->low;
    for (int i = 0; i < ch->n; i++) {
        const int64_t at = atomic_load(&ch->low[i].at);
        low = at < low ? at : low;
    }
    k->room = low + RING;
    return sequence < k->room;
}

static void fill_post(const Comm *c, int slot, Post *post)
{
    const Flight *f = &((Local *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const bool reads = transfer_reads(t, c->set.rank), writes = transfer_writes(t);
    post->signature = transfer_signature(t);
    post->from = !reads || t->from.count == 0 ? NULL : f->staged ? f->staged : comm_at(c, &t->from);
    post->to = !writes || t->to.count == 0 ? NULL
               : f->staged_to              ? f->staged_to
                                           : comm_at(c, &t->to);
    post->from_count = t->from.count;
    post->to_count = t->to.count;
    post->from_counts = t->from_counts;
    post->to_counts = t->to_counts;
    post->device = f->device;
}

bool all_posted(const Flight *f, int64_t sequence, int *seen)
{
    const Op *op = flight_op(f, sequence);
    const int n = f->link->channel->n;
    while (*seen < n && atomic_load(&op->post[*seen].sequence) == sequence + 1) ++*seen;
    return *seen == n;
}

Err step_post(Comm *c, int slot, bool *posted)
{
    Local *l = c->state;
    Flight *f = &l->flight[slot];
    Channel *ch = f->link->channel;
    const int64_t sequence = c->pending[slot].sequence;
    Op *op = flight_op(f, sequence);
    *posted = false;
    if (f->late && f->not_before_s > 0 && comm_now_s() < f->not_before_s) return OK;
    if (!ring_has_room(f->link, sequence)) return OK;
    if (f->link->place == 0) { /* nobody claims before all have posted, this one too */
        atomic_store_explicit(&op->next, 0, memory_order_relaxed);
        atomic_store_explicit(&op->done, 0, memory_order_relaxed);
        atomic_store_explicit(&op->skipped, 0, memory_order_relaxed);
    }
    Post *mine = &op->post[f->link->place];
    fill_post(c, slot, mine);
    if (f->device) TRY(device_ready(c, slot, mine));
    f->small = is_small(&mine->signature, ch->n) && !f->device && !f->by_transport;
    if (f->small && mine->from) {
        memcpy(mine->room, mine->from, ref_bytes(&c->pending[slot].t.from));
        mine->from = mine->room;
    }
    atomic_store(&mine->sequence, sequence + 1);
    f->stage = WAITING;
    int seen = 0;
    if (atomic_load(&l->world->sleepers) > 0 && all_posted(f, sequence, &seen))
        channel_wake(l->world, ch);
    *posted = true;
    return OK;
}

/* Does a unit, if there is one. */
static Err claim(Comm *c, int slot)
{
    Local *l = c->state;
    Flight *f = &l->flight[slot];
    Op *op = flight_op(f, c->pending[slot].sequence);
    const int64_t unit = f->units > 0 ? atomic_fetch_add(&op->next, 1) : 0;
    if (unit >= f->units) {
        f->stage = FINISHING;
        return OK;
    }
    Err err = OK;
    if (f->device) f->stage = FINISHING; /* its part alone is a member's */
    if (world_failed(l->world) ||
        (err = f->device ? device_part(c, slot) : move_unit(c, slot, unit)) != OK)
        atomic_fetch_add(&op->skipped, 1);
    else if (atomic_fetch_add(&op->done, 1) + 1 == f->units)
        channel_wake(l->world, f->link->channel);
    return err;
}

static void leave(Comm *c, int slot)
{
    Local *l = c->state;
    Flight *f = &l->flight[slot];
    Link *k = f->link;
    k->left |= 1u << (c->pending[slot].sequence % RING);
    while (k->left & 1u << (k->low % RING)) k->left &= ~(1u << (k->low++ % RING));
    atomic_store_explicit(&k->channel->low[k->place].at, k->low, memory_order_release);
    /* May miss one that falls asleep right now: with something unposted, naps are short. */
    if (atomic_load_explicit(&k->channel->unposted, memory_order_relaxed) > 0)
        channel_wake(l->world, k->channel);
    atomic_store_explicit(&l->seat->flight[slot].channel, NULL, memory_order_relaxed);
    f->stage = OVER;
    l->active--;
    comm_progress(c, slot, DONE);
}

/* By the mover: over for the host when it is in a queue of the device. */
static Err move_on(Comm *c, int slot, bool *moved)
{
    bool over = false;
    TRY(c->transport->launch(c, slot, &over));
    if (over) leave(c, slot);
    *moved = *moved || over;
    return OK;
}

Err step(Comm *c, int slot, bool *moved)
{
    Local *l = c->state;
    Flight *f = &l->flight[slot];
    const int64_t sequence = c->pending[slot].sequence;
    const Stage before = f->stage;
    const char *what;
    int place;
    bool posted;
    switch (f->stage) {
    case UNPOSTED:
        TRY(step_post(c, slot, &posted));
        if (posted) atomic_fetch_sub(&f->link->channel->unposted, 1);
        break;
    case WAITING:
        if (!all_posted(f, sequence, &f->seen)) break;
        if ((what = move_differs(c, slot, &place)) != NULL)
            return move_mismatch(c, slot, place, what);
        comm_progress(c, slot, MATCHED);
        f->stage = MOVING;
        if (f->by_transport) {
            return move_on(c, slot, moved);
        } else if (!f->small) {
            move_cut(c, slot);
        } else {
            move_own(c, slot);
            leave(c, slot);
        }
        break;
    case MOVING:
        if (f->by_transport) return move_on(c, slot, moved);
        *moved = true;
        return claim(c, slot);
    case FINISHING:
        if (atomic_load(&flight_op(f, sequence)->done) == f->units) leave(c, slot);
        break;
    case OVER:
        break;
    }
    *moved = *moved || f->stage != before;
    return OK;
}

Err step_all(Comm *c, bool *moved)
{
    Local *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++)
        if (l->flight[i].stage != OVER) TRY(step(c, i, moved));
    return OK;
}

void give_up(Comm *c)
{
    Local *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++) {
        Flight *f = &l->flight[i];
        int seen = 0, place;
        if (f->stage == OVER) { /* its parts may still run, if it was not waited for */
            if (f->device && c->pending[i].busy) device_settle(c, i);
            continue;
        }
        const int64_t sequence = c->pending[i].sequence;
        const Op *op = flight_op(f, sequence);
        if (f->stage != UNPOSTED && !f->small && !f->by_transport && all_posted(f, sequence, &seen) &&
            !move_differs(c, i, &place)) {
            move_cut(c, i);
            for (;;) {
                const int64_t next = atomic_load(&op->next);
                const int64_t claimed = next < f->units ? next : f->units;
                if (atomic_load(&op->done) + atomic_load(&op->skipped) >= claimed) break;
                sched_yield();
            }
            if (f->device) device_settle(c, i);
        }
        f->stage = OVER;
        l->active--;
    }
}
