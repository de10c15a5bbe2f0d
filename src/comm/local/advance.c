/* advance.c -- the state machine of a transfer.
 *
 *     UNPOSTED   ring entry free?         -> post
 *     WAITING    all members posted?      -> compare signatures, split into tasks
 *     MOVING     a task left to claim?    -> run it
 *     DRAINING   all tasks finished?      -> leave the channel
 *     FINISHED
 *
 * Each call is a load or two, or one task; none blocks.
 *
 * A rank that cancels its transfers may free its memory afterwards, so no task may access it any
 * more. A claim of a task is therefore followed by a check whether the world has failed.
 * cancel_all, which runs after the failure, waits for the tasks that were claimed before. Claim,
 * failure and checks are sequentially consistent, so one side sees the other. */
#define _GNU_SOURCE
#include "comm/local/local_parts.h"

#include <sched.h>
#include <string.h>
#include "base/clock.h"

/* Depends only on the signature, so that all members decide alike. A pair gains nothing: its two
 * members have one rendezvous anyway. The counts of an all-to-all are not in the signature. */
static bool is_eager(const TransferSignature *m, int n)
{
    const int64_t bytes = m->count * (int64_t)dtype_bytes((DType)m->dtype);
    return m->kind != COMM_SEND && m->kind != COMM_ALL_TO_ALL && bytes <= MAX_EAGER_BYTES &&
           bytes * n <= MAX_EAGER_WORK;
}

/* Reads the `low` of all members only when the cached bound is used up. */
static bool entry_is_free(ChannelMember *k, int64_t sequence)
{
    const Channel *ch = k->channel;
    if (sequence < k->free_below) return true;
    int64_t low = k->low;
    for (int i = 0; i < ch->n; i++) {
        const int64_t at = atomic_load(&ch->low[i].at);
        low = at < low ? at : low;
    }
    k->free_below = low + RING;
    return sequence < k->free_below;
}

/* Plain stores: the store of `sequence` after them releases the post to the other members. */
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
    post->begun_s = now_s();
}

bool all_posted(const LocalFlight *f, int64_t sequence, int *seen)
{
    const RingEntry *entry = entry_of(f, sequence);
    const int n = f->member->channel->n;
    while (*seen < n && atomic_load(&entry->post[*seen].sequence) == sequence + 1) ++*seen;
    return *seen == n;
}

Err post_when_free(Comm *c, int slot, bool *posted)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    Channel *ch = f->member->channel;
    const int64_t sequence = c->pending[slot].sequence;
    RingEntry *entry = entry_of(f, sequence);
    *posted = false;
    if (f->late && f->not_before_s > 0 && now_s() < f->not_before_s) return OK;
    if (!entry_is_free(f->member, sequence)) return OK;
    if (f->member->place == 0) { /* no member claims before all have posted, this one included */
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

/* Claims and runs one task; without a free task, the transfer drains. */
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
    if (f->device) f->state = DRAINING; /* a member runs only its own part */
    if (world_failed(l->world) ||
        (err = f->device ? device_part(c, slot) : move_task(c, slot, task)) != OK)
        atomic_fetch_add(&entry->skipped, 1);
    else if (atomic_fetch_add(&entry->done, 1) + 1 == f->tasks)
        channel_wake(l->world, f->member->channel);
    return err;
}

/* Advances `low` past all transfers that are left in order, and frees the published copy. */
static void leave(Comm *c, int slot)
{
    LocalComm *l = c->state;
    LocalFlight *f = &l->flight[slot];
    ChannelMember *k = f->member;
    k->left |= 1u << (c->pending[slot].sequence % RING);
    while (k->left & 1u << (k->low % RING)) k->left &= ~(1u << (k->low++ % RING));
    atomic_store_explicit(&k->channel->low[k->place].at, k->low, memory_order_release);
    /* A relaxed load may miss a member that goes to sleep right now; with something unposted,
     * sleeps are short. */
    if (atomic_load_explicit(&k->channel->unposted, memory_order_relaxed) > 0)
        channel_wake(l->world, k->channel);
    atomic_store_explicit(&l->self->flight[slot].channel, NULL, memory_order_relaxed);
    f->state = FINISHED;
    l->active--;
    comm_progress(c, slot, DONE);
}

/* By the device transport: finished for the host when the part is in a queue of the device. */
static Err move_on(Comm *c, int slot, bool *moved)
{
    bool launched = false;
    TRY(c->transport->launch(c, slot, &launched));
    if (launched) leave(c, slot);
    *moved = *moved || launched;
    return OK;
}

/* The time at which the last member posted the transfer: this rank may notice later. */
static double last_begin(const LocalFlight *f, int64_t sequence)
{
    const RingEntry *entry = entry_of(f, sequence);
    double last = 0;
    for (int i = 0; i < f->member->channel->n; i++)
        if (entry->post[i].begun_s > last) last = entry->post[i].begun_s;
    return last;
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
        TRY(post_when_free(c, slot, &posted));
        if (posted) atomic_fetch_sub(&f->member->channel->unposted, 1);
        break;
    case WAITING:
        if (!all_posted(f, sequence, &f->seen)) break;
        if ((what = move_differs(c, slot, &place)) != NULL)
            return move_mismatch(c, slot, place, what);
        comm_progress(c, slot, MATCHED);
        if (!c->set.delay_noticed) c->pending[slot].begun_s = last_begin(f, sequence) - c->opened_s;
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

/* A transfer that has not been posted by all members, or whose signatures differ, has no tasks. */
void cancel_all(Comm *c)
{
    LocalComm *l = c->state;
    for (int i = 0; i < c->set.in_flight; i++) {
        LocalFlight *f = &l->flight[i];
        int seen = 0, place;
        if (f->state == FINISHED) { /* parts in queues may still run if it was not waited for */
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
