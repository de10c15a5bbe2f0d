/* device.c -- transfers of device memory between thread-ranks, which share a device or have peer
 * access to each other's.
 *
 *     rank 0  compute | a | ready0 ................ wait done0, done1 | b
 *             comm    |     wait ready0, ready1 | part 0 | done0
 *     rank 1  comm    |     wait ready0, ready1 | part 1 | done1
 *
 *     part i of   all-reduce       segment i of the array, folded from all members, written to all;
 *                                  no other part reads it
 *                 reduce-scatter   the elements that member i keeps, folded from all members
 *                 all-gather, all-to-all, broadcast, recv
 *                                  the elements that member i receives, copied from their owners;
 *                                  a send has no part
 *
 * An event is waited for only after it was recorded: all members have posted before any part is
 * queued, and all parts are queued before any comm_wait returns. So queues cannot wait in a cycle,
 * and the host waits for other hosts, never for a device. */
#include "comm/local/local_parts.h"

static DeviceQueue *queue_of(const Comm *c, Queue queue)
{
    return c->device.runtime->queue(c->device.context, queue);
}

static LocalPost *posts_of(const Comm *c, int slot)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    return entry_of(f, c->pending[slot].sequence)->post;
}

/* Events are owned by the world: other ranks may wait for one after its rank has left. */
static Err open_event(Comm *c, DeviceEvent **out)
{
    LocalWorld *w = ((LocalComm *)c->state)->world;
    LocalEvent *e;
    DeviceEvent *event;
    TRY(c->device.runtime->event_open(c->device.context, &event));
    pthread_mutex_lock(&w->lock);
    const Err err = ARENA_NEW(&w->arena, 1, &e);
    if (err == OK) {
        *e = (LocalEvent){w->events, c->device.runtime, event};
        w->events = e;
    }
    pthread_mutex_unlock(&w->lock);
    if (err != OK) c->device.runtime->event_close(event);
    *out = event;
    return err;
}

Err device_ready(Comm *c, int slot, LocalPost *mine)
{
    (void)slot;
    if (!mine->ready || mine->events_of != c->set.rank) {
        TRY(open_event(c, &mine->ready));
        TRY(open_event(c, &mine->done));
        mine->events_of = c->set.rank;
    }
    return c->device.runtime->record(queue_of(c, QUEUE_COMPUTE), mine->ready);
}

/* Arguments of the functions below: the part of member `me`. */
typedef struct {
    Comm *c;
    const Transfer *t;
    const Channel *ch;
    LocalPost *post;
    DeviceQueue *q;
    int n, me;
    size_t each;
} DevicePart;

static DevicePart part_of(Comm *c, int slot)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    LocalPost *post = posts_of(c, slot);
    return (DevicePart){.c = c,
                        .t = &c->pending[slot].t,
                        .ch = f->member->channel,
                        .post = post,
                        .q = queue_of(c, QUEUE_COMM),
                        .n = f->member->channel->n,
                        .me = f->member->place,
                        .each = dtype_bytes((DType)post->signature.dtype)};
}

static Err copy(const DevicePart *p, char *to, const char *from, int64_t count)
{
    if (count == 0 || to == from) return OK;
    return p->c->device.runtime->copy(p->q, to, from, (size_t)count * p->each);
}

/* Folds elements start .. start + count - 1 of all members into the `to` of members [lo, hi), at
 * element to_start. */
static Err fold_part(const DevicePart *p, int64_t start, int64_t count, int lo, int hi,
                     int64_t to_start)
{
    const void *x[MAX_DEVICE_FOLD];
    void *out[MAX_DEVICE_FOLD];
    char name[TRANSFER_NAME_BYTES];
    if (count == 0) return OK;
    if (p->n > MAX_DEVICE_FOLD)
        return err_fail(ERR_CHECK, "local: %s: devices fold %d members at most",
                        transfer_name(p->t, 0, name), (int)MAX_DEVICE_FOLD);
    for (int i = 0; i < p->n; i++) x[i] = p->post[i].from + (size_t)start * p->each;
    for (int i = lo; i < hi; i++) out[i - lo] = p->post[i].to + (size_t)to_start * p->each;
    const DeviceFold fold = {.dtype = (DType)p->post->signature.dtype,
                             .max = p->post->signature.reduce == REDUCE_MAX,
                             .n = p->n,
                             .n_out = hi - lo,
                             .x = x,
                             .out = out,
                             .count = count};
    return p->c->device.runtime->fold(p->q, &fold);
}

/* Folds segment `me` of the array. Segments begin on cache lines, so no two parts write one
 * line. */
static Err reduce_part(const DevicePart *p)
{
    const int64_t line = (int64_t)(ARENA_ALIGN / p->each), count = p->post->signature.count;
    const int64_t lines = (count + line - 1) / line, each = (lines + p->n - 1) / p->n * line;
    const int64_t lo = each * p->me < count ? each * p->me : count;
    const int64_t hi = lo + each < count ? lo + each : count;
    return fold_part(p, lo, hi - lo, 0, p->n, lo);
}

static Err gather_part(const DevicePart *p)
{
    for (int i = 0; i < p->n; i++) {
        const int64_t count = part_count(p->t->to_counts, p->t->to.count, p->n, i);
        const int64_t at = part_start(p->t->to_counts, p->t->to.count, p->n, i);
        if (count > 0)
            TRY(copy(p, p->post[p->me].to + (size_t)at * p->each, p->post[i].from, count));
    }
    return OK;
}

static Err exchange_part(const DevicePart *p)
{
    const LocalPost *mine = &p->post[p->me];
    char name[TRANSFER_NAME_BYTES];
    for (int i = 0; i < p->n; i++) {
        const LocalPost *from = &p->post[i];
        const int64_t gives = part_count(from->from_counts, from->from_count, p->n, p->me);
        const int64_t takes = part_count(mine->to_counts, mine->to_count, p->n, i);
        if (gives != takes)
            return err_fail(ERR_CHECK,
                            "local: %s: rank %d gives %lld elements to rank %d, which takes %lld",
                            transfer_name(p->t, 0, name), p->ch->member[i], (long long)gives,
                            p->ch->member[p->me], (long long)takes);
        if (gives == 0) continue;
        TRY(copy(p,
                 mine->to + (size_t)part_start(mine->to_counts, mine->to_count, p->n, i) * p->each,
                 from->from +
                     (size_t)part_start(from->from_counts, from->from_count, p->n, p->me) * p->each,
                 gives));
    }
    return OK;
}

/* Index of the root of a broadcast, or of the sender of a pair. */
static int giver(const DevicePart *p)
{
    return p->ch->from >= 0 ? 0 : group_index(p->t->group, p->post->signature.root);
}

static Err move_part(const DevicePart *p)
{
    switch (p->t->kind) {
    case COMM_ALL_REDUCE:
        return reduce_part(p);
    case COMM_REDUCE_SCATTER:
        return fold_part(p, part_start(p->t->from_counts, p->t->from.count, p->n, p->me),
                         p->t->to.count, p->me, p->me + 1, 0);
    case COMM_ALL_GATHER:
        return gather_part(p);
    case COMM_ALL_TO_ALL:
        return exchange_part(p);
    case COMM_SEND:
        return OK;
    default:
        return copy(p, p->post[p->me].to, p->post[giver(p)].from, p->t->to.count);
    }
}

Err device_part(Comm *c, int slot)
{
    const DeviceRuntime *rt = c->device.runtime;
    const DevicePart p = part_of(c, slot);
    const bool one_gives = p.t->kind == COMM_BROADCAST;
    for (int i = 0; i < p.n; i++)
        if (!one_gives || i == p.me || i == giver(&p)) TRY(rt->wait(p.q, p.post[i].ready));
    TRY(move_part(&p));
    TRY(rt->record(p.q, p.post[p.me].done));
    atomic_store(&p.post[p.me].issued, c->pending[slot].sequence + 1);
    return OK;
}

/* The ring entry may have been reused since. Then `done` belongs to a later transfer of that
 * member, which is behind this one in the same queue: waiting for it is longer, but correct. */
Err device_deliver(Comm *c, int slot)
{
    const DevicePart p = part_of(c, slot);
    for (int i = 0; i < p.n; i++)
        TRY(c->device.runtime->wait(queue_of(c, QUEUE_COMPUTE), p.post[i].done));
    return OK;
}

void device_settle(Comm *c, int slot)
{
    const DevicePart p = part_of(c, slot);
    for (int i = 0; i < p.n; i++)
        if (atomic_load(&p.post[i].issued) > c->pending[slot].sequence)
            (void)c->device.runtime->sync_event(p.post[i].done);
}
