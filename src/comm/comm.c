/* comm.c -- the part of a comm that all backends share: registered memory, tickets, the
 * recorder. */
#define _POSIX_C_SOURCE 200809L
#include "comm/backend.h"

#include <stdio.h>
#include "base/clock.h"

/* A recorder of the settings is reset, with the memory of its ring kept. */
static Err open_recorder(Comm *c, Arena *a)
{
    Record *ring;
    c->recorder = c->set.recorder;
    if (c->recorder) {
        ring = c->recorder->ring;
    } else {
        TRY(ARENA_NEW(a, 1, &c->recorder));
        TRY(ARENA_NEW(a, c->set.records, &ring));
    }
    *c->recorder =
        (Recorder){.ring = ring, .cap = c->set.records, .waits = -1, .opened_s = c->opened_s};
    return OK;
}

Err comm_open(Arena *a, const CommSettings *set, const CommTable *table, void *state, Comm **out)
{
    Comm *c;
    if (set->in_flight < 1 || set->records < 1)
        return err_fail(ERR_CONFIG, "comm: room for %d transfers and %lld records; at least 1 each",
                        set->in_flight, (long long)set->records);
    TRY(delay_check(set));
    TRY(ARENA_NEW(a, 1, &c));
    *c = (Comm){.table = table, .state = state, .set = *set, .arena = a, .opened_s = now_s()};
    TRY(ARENA_NEW(a, set->in_flight, &c->pending));
    TRY(ARENA_NEW(a, COMM_STAGING + 2 * set->in_flight, &c->memory));
    TRY(open_recorder(c, a));
    for (int i = 0; i < MAX_GROUPS; i++) c->group[i].serial = -1;
    /* Memory of agreements: a code per rank, then one message (agree.c, nccl/channels.c). */
    char *own;
    const size_t own_bytes = align_up(sizeof(int32_t) * (size_t)set->ranks) + COMM_TEXT_BYTES;
    TRY(ARENA_NEW(a, own_bytes, &own));
    c->memory[COMM_OWN].base = own;
    c->memory[COMM_OWN].bytes = own_bytes;
    *out = c;
    return OK;
}

/* The device transport first: its queues may still use memory of the backend. Staging last: the
 * backend may read its buffers until it is closed. */
void comm_close(Comm *c)
{
    device_transport_close(c);
    c->table->close(c);
    staging_close(c);
}

int comm_rank(const Comm *c) { return c->set.rank; }

int comm_ranks(const Comm *c) { return c->set.ranks; }

Err comm_register(Comm *c, int arena, void *base, size_t bytes)
{
    if (arena < 0 || arena >= MAX_COMM_ARENAS)
        return err_fail(ERR_CHECK, "comm: arena %d; ids are 0 to %d", arena, MAX_COMM_ARENAS - 1);
    if (!base && bytes > 0)
        return err_fail(ERR_CHECK, "comm: arena %d has %zu bytes at no address", arena, bytes);
    c->memory[arena].base = base;
    c->memory[arena].bytes = bytes;
    c->memory[arena].on_device = false;
    return OK;
}

Err comm_register_device(Comm *c, int arena, void *base, size_t bytes, CommDevice device)
{
    if (device.context != c->device.context && c->device.context) {
        TRY(comm_idle(c));
        comm_release_device(c);
    }
    TRY(comm_register(c, arena, base, bytes));
    c->memory[arena].on_device = true;
    c->device = device;
    return OK;
}

void comm_release_device(Comm *c)
{
    device_transport_close(c);
    staging_close(c);
    c->device = (CommDevice){0};
}

bool comm_is_staged(const Comm *c)
{
    return c->set.staged || (!c->table->moves_device_memory && !c->transport);
}

void *comm_at(const Comm *c, const Ref *r) { return c->memory[r->arena].base + r->offset; }

static Record *record_of(Comm *c, int64_t number)
{
    return &c->recorder->ring[number % c->recorder->cap];
}

const Record *recorder_at(const Recorder *r, int64_t number)
{
    if (number < 0 || number >= r->total || number < r->total - r->cap) return NULL;
    return &r->ring[number % r->cap];
}

const char *record_text(const Record *r, char buffer[RECORD_TEXT_BYTES])
{
    Transfer t = {.kind = r->kind, .instr = r->instr, .group = {r->n_ranks, r->rank}};
    t.from.rank = t.to.rank = r->peer;
    return transfer_name(&t, r->sequence,
                         buffer); /* prints only the first few ranks of the group */
}

const Recorder *comm_recorder(const Comm *c) { return c->recorder; }

CommTotals comm_totals(const Comm *c)
{
    CommTotals t = {.scalars = c->recorder->scalars};
    for (int k = 0; k < N_COMM_KINDS; k++) t.of_kind[k] = c->recorder->of_kind[k];
    return t;
}

static void add_between(CommCount *sum, const CommCount *from, const CommCount *to)
{
    sum->transfers += to->transfers - from->transfers;
    sum->bytes += to->bytes - from->bytes;
    sum->sent_bytes += to->sent_bytes - from->sent_bytes;
}

void comm_repeat(Comm *c, const CommTotals *from, const CommTotals *to)
{
    for (int k = 0; k < N_COMM_KINDS; k++)
        add_between(&c->recorder->of_kind[k], &from->of_kind[k], &to->of_kind[k]);
    add_between(&c->recorder->scalars, &from->scalars, &to->scalars);
}

static int32_t peer_of(const Transfer *t)
{
    if (t->kind == COMM_SEND) return t->to.rank;
    return t->kind == COMM_RECV || t->kind == COMM_BROADCAST ? t->from.rank : -1;
}

static void record_post(Comm *c, const PendingTransfer *p)
{
    const Ref *payload = transfer_reads(&p->t, c->set.rank) ? &p->t.from : &p->t.to;
    Record *r = record_of(c, p->number);
    *r = (Record){.number = p->number,
                  .sequence = p->sequence,
                  .group = p->row->serial,
                  .instr = p->t.instr,
                  .purpose = p->t.purpose,
                  .kind = p->t.kind,
                  .dtype = payload->dtype,
                  .scalar = p->t.scalar,
                  .bytes = ref_bytes(payload),
                  .sent_bytes = transfer_sent(&p->t, c->set.rank),
                  .posted_s = now_s() - c->opened_s,
                  .matched_s = -1,
                  .done_s = -1,
                  .peer = peer_of(&p->t),
                  .n_ranks = p->t.group.n};
    for (int i = 0; i < r->n_ranks && i < RECORD_RANKS; i++) r->rank[i] = p->t.group.rank[i];
    c->recorder->total++;
}

/* Called after the backend accepted the transfer, so refused transfers are in no sum. */
static void record_count(Comm *c, const PendingTransfer *p)
{
    const Record *r = record_of(c, p->number);
    CommCount *count = p->t.scalar ? &c->recorder->scalars : &c->recorder->of_kind[p->t.kind];
    count->transfers++;
    count->bytes += r->bytes;
    count->sent_bytes += r->sent_bytes;
}

void comm_progress(Comm *c, int slot, TransferProgress progress)
{
    PendingTransfer *p = &c->pending[slot];
    Record *r = record_of(c, p->number);
    const double at_s = now_s() - c->opened_s;
    p->progress = progress;
    if (progress == MATCHED) p->begun_s = at_s;
    if (r->number != p->number) return; /* overwritten in the ring by a newer transfer */
    if (progress == MATCHED) r->matched_s = at_s;
    if (progress == DONE) r->done_s = at_s;
}

/* A delayed transfer is recorded as done when it is due. */
static void record_delay(Comm *c, const PendingTransfer *p)
{
    Record *r = record_of(c, p->number);
    if (r->number == p->number && r->done_s < p->due_s) r->done_s = p->due_s;
}

static Err free_slot(const Comm *c, const Transfer *t, int64_t sequence, int *out)
{
    char name[TRANSFER_NAME_BYTES];
    for (int i = 0; i < c->set.in_flight; i++) {
        if (c->pending[i].busy) continue;
        *out = i;
        return OK;
    }
    return err_fail(ERR_CHECK,
                    "comm: %s: %d transfers are in flight, the most there can be; wait "
                    "for one before",
                    transfer_name(t, sequence, name), c->set.in_flight);
}

/* True if the transfer's memory is a device's; transfer_check has made sure that both sides
 * agree. */
static bool on_device(const Comm *c, const Transfer *t)
{
    return c->memory[transfer_reads(t, c->set.rank) ? t->from.arena : t->to.arena].on_device;
}

Err comm_begin(Comm *c, const Transfer *t, Ticket *out)
{
    GroupRow *g;
    int slot;
    TRY(group_of(c, t->group, t->purpose, &g));
    MatchChannel *s = group_channel(g, t);
    TRY(transfer_check(c, t, s->next));
    TRY(free_slot(c, t, s->next, &slot));
    PendingTransfer *p = &c->pending[slot];
    *p = (PendingTransfer){.busy = true,
                           .t = *t,
                           .number = c->recorder->total,
                           .sequence = s->next,
                           .launch = s->next_launch,
                           .row = g,
                           .channel = s};
    p->t.group.rank = g->rank; /* the caller may free its list */
    record_post(c, p);
    p->delay_s = delay_of(&c->set, record_of(c, p->number));
    p->on_device = on_device(c, t);
    const bool staged = p->on_device && comm_is_staged(c);
    p->by_transport = p->on_device && !staged && c->transport;
    Err err = staged ? staging_begin(c, slot) : p->by_transport ? c->transport->begin(c, slot) : OK;
    if (err == OK) err = c->table->begin(c, slot);
    if (err != OK) {
        p->busy = false;
        c->recorder->total--; /* no member will match it; its number is used again */
        return err;
    }
    /* Only now: a transfer that was refused must not shift the numbers that members match by. */
    record_count(c, p);
    s->next++;
    s->next_launch += p->by_transport;
    g->in_flight++;
    *out = (Ticket){slot, p->number};
    return OK;
}

Err comm_wait(Comm *c, Ticket ticket)
{
    PendingTransfer *p =
        ticket.slot >= 0 && ticket.slot < c->set.in_flight ? &c->pending[ticket.slot] : NULL;
    if (!p || !p->busy || p->number != ticket.number)
        return err_fail(ERR_CHECK,
                        "comm: wait for transfer number %lld, which is not in flight; was it "
                        "waited for before?",
                        (long long)ticket.number);
    /* Stays set after an error: the flight recorder then shows the transfer that failed. */
    c->recorder->waits = ticket.number;
    TRY(device_transport_failed(c, c->table->wait(c, ticket.slot), false));
    MUST(p->progress == DONE, "rank %d: %s returned OK before it is done", c->set.rank,
         c->table->name);
    if (p->by_transport) TRY(device_transport_failed(c, c->transport->wait(c, ticket.slot), true));
    if (c->staged) TRY(staging_end(c, ticket.slot));
    TRY(delay_wait(c, p));
    record_delay(c, p);
    c->recorder->waits = -1;
    p->busy = false;
    p->row->in_flight--;
    return OK;
}

Err comm_do(Comm *c, const Transfer *t)
{
    Ticket ticket;
    TRY(comm_begin(c, t, &ticket));
    return comm_wait(c, ticket);
}

Err comm_poll(Comm *c)
{
    if (c->table->poll) TRY(device_transport_failed(c, c->table->poll(c), false));
    return c->transport ? device_transport_failed(c, c->transport->poll(c), true) : OK;
}

void comm_abort(Comm *c, Err err, const char *message)
{
    (void)device_transport_failed(c, err == OK ? ERR_PEER : err, false);
    if (c->table->abort) c->table->abort(c, err, message);
}

bool comm_unfinished(const Comm *c, char text[COMM_TEXT_BYTES])
{
    char name[TRANSFER_NAME_BYTES];
    const PendingTransfer *oldest = NULL;
    for (int i = 0; i < c->set.in_flight; i++) {
        const PendingTransfer *p = &c->pending[i];
        if (p->busy && (!oldest || p->number < oldest->number)) oldest = p;
    }
    if (!oldest) return false;
    snprintf(text, COMM_TEXT_BYTES,
             "comm: %s was begun and not waited for, and no error of this rank is the reason: a "
             "bug of sheaf; run.comm=mpi, or other values of parallel.*, may avoid it",
             transfer_name(&oldest->t, oldest->sequence, name));
    return true;
}

Err comm_idle(const Comm *c)
{
    char text[COMM_TEXT_BYTES];
    return comm_unfinished(c, text) ? err_fail(ERR_CHECK, "%s", text) : OK;
}
