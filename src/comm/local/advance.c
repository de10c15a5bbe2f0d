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
#include "base/clock.h"

/* By what all members agree on. Those of a pair meet anyway; parts of an all-to-all are known to
 * their two members alone. */
static bool is_eager(const TransferSignature *m, int n)
{
    const int64_t bytes = m->count * (int64_t)dtype_bytes((DType)m->dtype);
    return m->kind != COMM_SEND && m->kind != COMM_ALL_TO_ALL && bytes <= MAX_EAGER_BYTES &&
           bytes * n <= MAX_EAGER_WORK;
}

static bool ring_has_room(ChannelMember *k, int64_t sequence)
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

static void fill_post(const Comm *c, int slot, LocalPost *post)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
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

bool all_posted(const LocalFlight *f, int64_t sequence, int *seen)
{
    const RingEntry *entry = entry_of(f, sequence);
    const int n = f->member->channel->n;
    while (*seen < n && atomic_load(&entry->post[*seen].sequence) == sequence + 1) ++*seen;
    return *seen == n;
}

Err post_when_room(Comm *c, int slot, bool *posted)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    Channel *ch = f->member->channel;
    const int64_t sequence = c->pending[slot].sequence;
    RingEntry *entry = entry_of(f, sequence);
    *posted = false;
    if (f->late && f->not_before_s > 0 && now_s() < f->not_before_s) return OK;
    if (!ring_has_room(f->member, sequence)) return OK;
    if (f->member->place == 0) { /* nobody claims before all have posted, this one too */
        atomic_store_explicit(&entry->next, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->done, 0, memory_order_relaxed);
        atomic_store_explicit(&entry->skipped, 0, memory_order_relaxed);
    }
    LocalPost *mine = &entry->post[f->member->place];
    fill_post(c, slot, mine);
    if (f->device) TRY(device_ready(c, slot, mine));
    f->eager = is_eager(&mine->signature, ch->n) && !f->device && !f->by_transport;
    if (f->eager && mine->from) {
        memcpy(mine->eager, mine->from, ref_bytes(&c->pending[slot].t.from));
        mine->from = mine->eager;
    }
    atomic_store(&mine->sequence, sequence + 1);
    f->state = WAITING;
    int seen = 0;
    if (atomic_load(&l->world->sleepers) > 0 && all_posted(f, sequence, &seen))
        channel_wake(l->world, ch);
    *posted = true;
    return OK;
}

/* Does a unit, if there is one. */
static Err claim(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    RingEntry *entry = entry_of(f, c->pending[slot].sequence);
    const int64_t task = f->tasks > 0 ? atomic_fetch_add(&entry->next, 1) : 0;
    if (task >= f->tasks) {
        f->state = DRAINING;
        return OK;
    }
    Err err = OK;
    if (f->device) f->state = DRAINING; /* its part alone is a member's */
    if (world_failed(l->world) ||
        (err = f->device ? device_part(c, slot) : move_task(c, slot, task)) != OK)
        atomic_fetch_add(&entry->skipped, 1);
    else if (atomic_fetch_add(&entry->done, 1) + 1 == f->tasks)
        channel_wake(l->world, f->member->channel);
    return err;
}

static void leave(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    ChannelMember *k = f->member;
    k->left |= 1u << (c->pending[slot].sequence % RING);
    while (k->left & 1u << (k->low % RING)) k->left &= ~(1u << (k->low++ % RING));
    atomic_store_explicit(&k->channel->low[k->place].at, k->low, memory_order_release);
    /* May miss one that falls asleep right now: with something unposted, naps are short. */
    if (atomic_load_explicit(&k->channel->unposted, memory_order_relaxed) > 0)
        channel_wake(l->world, k->channel);
    atomic_store_explicit(&l->self->flight[slot].channel, NULL, memory_order_relaxed);
    f->state = FINISHED;
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

Err advance(Comm *c, int slot, bool *moved)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    const int64_t sequence = c->pending[slot].sequence;
    const LocalTransferState before = f->state;
    const char *what;
    int place;
    bool posted;
    switch (f->state) {
    case UNPOSTED:
        TRY(post_when_room(c, slot, &posted));
        if (posted) atomic_fetch_sub(&f->member->channel->unposted, 1);
        break;
    case WAITING:
        if (!all_posted(f, sequence, &f->seen)) break;
        if ((what = move_differs(c, slot, &place)) != NULL)
            return move_mismatch(c, slot, place, what);
        comm_progress(c, slot, MATCHED);
        f->state = MOVING;
        if (f->by_transport) {
            return move_on(c, slot, moved);
        } else if (!f->eager) {
            move_split(c, slot);
        } else {
            move_eager(c, slot);
            leave(c, slot);
        }
        break;
    case MOVING:
        if (f->by_transport) return move_on(c, slot, moved);
        *moved = true;
        return claim(c, slot);
    case DRAINING:
        if (atomic_load(&entry_of(f, sequence)->done) == f->tasks) leave(c, slot);
        break;
    case FINISHED:
        break;
    }
    *moved = *moved || f->state != before;
    return OK;
}

Err advance_all(Comm *c, bool *moved)
{
    LocalComm *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++)
        if (l->flight[i].state != FINISHED) TRY(advance(c, i, moved));
    return OK;
}

void cancel_all(Comm *c)
{
    LocalComm *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++) {
        LocalFlight *f = &l->flight[i];
        int seen = 0, place;
        if (f->state == FINISHED) { /* its parts may still run, if it was not waited for */
            if (f->device && c->pending[i].busy) device_settle(c, i);
            continue;
        }
        const int64_t sequence = c->pending[i].sequence;
        const RingEntry *entry = entry_of(f, sequence);
        if (f->state != UNPOSTED && !f->eager && !f->by_transport &&
            all_posted(f, sequence, &seen) && !move_differs(c, i, &place)) {
            move_split(c, i);
            for (;;) {
                const int64_t next = atomic_load(&entry->next);
                const int64_t claimed = next < f->tasks ? next : f->tasks;
                if (atomic_load(&entry->done) + atomic_load(&entry->skipped) >= claimed) break;
                sched_yield();
            }
            if (f->device) device_settle(c, i);
        }
        f->state = FINISHED;
        l->active--;
    }
}
