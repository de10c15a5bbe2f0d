/* load.c -- processes the chunks of a checkpoint in order.
 *
 *     slot 0   chunk 17, read here: sends to ranks 2 and 5 are in flight
 *     slot 1   chunk 19, from rank 3: receive in flight
 *     slot 2   chunk 22, read here, sent
 *     slot 3   next
 *
 * Slots are used in turn; a busy slot is finished first. Consider the first chunk that is not
 * finished on all its ranks. Every member has begun its part, because a rank begins chunks in
 * order and waits only for chunks that it has begun. So that chunk completes, then the next:
 * no deadlock. */
#include "state/load.h"

#include <stdio.h>
#include <string.h>
#include "state/home_copy.h"
#include "state/chunk_read.h"
#include "state/convert.h"
#include "state/load_plan.h"

enum {
    LOAD_SLOTS = 4,
    MAX_LOAD_TRANSFERS = 16,     /* in flight, over all slots */
    SLOT_BYTES = 2 * CHUNK_BYTES /* the chunk, then packed messages */
};

typedef struct {
    size_t at; /* offset in ARENA_LOAD */
    size_t packed;
    Ticket ticket[MAX_LOAD_TRANSFERS];
    int n_tickets;
    int64_t n; /* boxes in the message that is being received; 0: none */
    LoadMove *move;
    int tensor;
    size_t element;
} Slot;

typedef struct {
    const LoadSettings *s;
    LoadPlan plan;
    ChunkReader reader;
    char *base;   /* of ARENA_LOAD */
    char *narrow; /* [CHUNK_BYTES], for a rank without master weights; else NULL */
    Slot slot[LOAD_SLOTS];
    int next, in_flight;
    LoadResult result;
    Err err; /* the first error of files */
    char text[1024];
} Load;

static ParamPart part_of(const Load *l, int tensor)
{
    static const ParamPart of_role[N_STATE_ROLES] = {PART_MASTER, PART_MOMENT1, PART_MOMENT2};
    return of_role[l->plan.tensors.tensor[tensor].role];
}

/* Returns the view of a move's box in the rank's home. */
static BoxView at_home(const Load *l, int tensor, const LoadMove *m)
{
    const Tensor home = rank_home(l->s->rank, m->want->pack, part_of(l, tensor));
    const size_t element = dtype_bytes(home.dtype);
    BoxView at = {.data = (char *)home.data + m->want->at * (int64_t)element};
    memcpy(at.stride, m->want->stride, sizeof at.stride);
    return box_inside(&at, &m->want->box, &m->box, element);
}

/* Writes a box in host memory, of the type of the files, to the home. A home without master weights
 * has the narrower type of programs: the box is rounded to nearest, as rank_publish does. */
static Err put_home(const Load *l, int tensor, const LoadMove *m, const BoxView *in)
{
    const DType file = l->plan.tensors.tensor[tensor].dtype;
    const Tensor home = rank_home(l->s->rank, m->want->pack, part_of(l, tensor));
    const BoxView out = at_home(l, tensor, m);
    if (home.dtype == file) return home_write(l->s->rank, &m->box, dtype_bytes(file), &out, in);
    const BoxView dense = box_dense(&m->box, l->narrow);
    box_copy(&m->box, dtype_bytes(file), in, &dense);
    (void)convert(st_type_of(file), l->narrow, st_type_of(home.dtype), l->narrow,
                  box_count(&m->box));
    return home_write(l->s->rank, &m->box, dtype_bytes(home.dtype), &out, &dense);
}

/* Copies the boxes of a received message to the home. */
static Err unpack(const Load *l, const Slot *slot)
{
    char *from = l->base + slot->at;
    for (int64_t i = 0; i < slot->n; i++) {
        const LoadMove *m = &slot->move[i];
        const BoxView in = box_dense(&m->box, from);
        TRY(put_home(l, slot->tensor, m, &in));
        from += box_count(&m->box) * (int64_t)slot->element;
    }
    return OK;
}

static Err finish(Load *l, Slot *slot)
{
    for (int i = 0; i < slot->n_tickets; i++) TRY(comm_wait(l->s->comm, slot->ticket[i]));
    l->in_flight -= slot->n_tickets;
    slot->n_tickets = 0;
    slot->packed = 0;
    TRY(unpack(l, slot));
    slot->n = 0;
    return OK;
}

static Err take_slot(Load *l, Slot **out)
{
    Slot *slot = &l->slot[l->next];
    l->next = (l->next + 1) % LOAD_SLOTS;
    TRY(finish(l, slot));
    *out = slot;
    return OK;
}

/* Begins a transfer with a peer. If too many are in flight, the oldest slots are finished first.
 * `slot` is the newest. */
static Err begin(Load *l, Slot *slot, const Transfer *t)
{
    for (int i = 0; i < LOAD_SLOTS && l->in_flight == MAX_LOAD_TRANSFERS; i++)
        TRY(finish(l, &l->slot[(l->next + i) % LOAD_SLOTS]));
    TRY(comm_begin(l->s->comm, t, &slot->ticket[slot->n_tickets]));
    slot->n_tickets++;
    l->in_flight++;
    return OK;
}

/* The boxes of a chunk that one rank needs. */
typedef struct {
    const LoadChunk *chunk;
    const LoadMove *move;
    int64_t n;
    int64_t count; /* elements */
} Message;

static Message message_of(const LoadChunk *c, int64_t from, int64_t to)
{
    Message m = {c, &c->move[from], to - from, 0};
    for (int64_t i = from; i < to; i++) m.count += box_count(&c->move[i].box);
    return m;
}

/* Packs the boxes of a message contiguously after the chunk. A single contiguous box is sent from
 * the chunk itself. */
static Err pack_slot(Load *l, Slot *slot, const Message *m, size_t *at)
{
    const LoadChunk *c = m->chunk;
    const BoxView chunk = box_dense(&c->box, l->base + slot->at);
    const BoxView first = box_inside(&chunk, &c->box, &m->move[0].box, c->element);
    const size_t bytes = (size_t)m->count * c->element;
    *at = (size_t)(first.data - l->base);
    if (m->n == 1 && box_is_run(&m->move[0].box, &first)) return OK;
    if (slot->packed + bytes > CHUNK_BYTES) TRY(finish(l, slot));
    *at = slot->at + CHUNK_BYTES + slot->packed;
    char *to = l->base + *at;
    for (int64_t i = 0; i < m->n; i++) {
        const Box *box = &m->move[i].box;
        const BoxView in = box_inside(&chunk, &c->box, box, c->element), out = box_dense(box, to);
        box_copy(box, c->element, &in, &out);
        to += box_count(box) * (int64_t)c->element;
    }
    slot->packed += bytes;
    return OK;
}

static Transfer transfer_of(const Load *l, CommKind kind, int peer, const LoadChunk *c)
{
    const DType dtype = l->plan.tensors.tensor[c->tensor].dtype;
    const Ref here = {l->s->rank->settings.program->rank, ARENA_LOAD, 0, 0, dtype};
    const Ref there = {.rank = peer, .dtype = dtype};
    return (Transfer){.kind = kind,
                      .group = l->s->all,
                      .purpose = PURPOSE_STATE,
                      .from = kind == COMM_SEND ? here : there,
                      .to = kind == COMM_SEND ? there : here,
                      .instr = -1,
                      .tag = c->tensor};
}

/* Copies the boxes that this rank needs of a chunk that it has read. */
static Err copy_own(const Load *l, const Slot *slot, const Message *m)
{
    const LoadChunk *c = m->chunk;
    const BoxView chunk = box_dense(&c->box, l->base + slot->at);
    for (int64_t i = 0; i < m->n; i++) {
        const Box *box = &m->move[i].box;
        const BoxView in = box_inside(&chunk, &c->box, box, c->element);
        TRY(put_home(l, c->tensor, &m->move[i], &in));
    }
    return OK;
}

static Err send_message(Load *l, Slot *slot, const Message *m)
{
    Transfer t = transfer_of(l, COMM_SEND, m->move[0].want->rank, m->chunk);
    TRY(pack_slot(l, slot, m, &t.from.offset));
    t.from.count = m->count;
    l->result.sent_bytes += m->count * (int64_t)m->chunk->element;
    return begin(l, slot, &t);
}

/* File errors are reported at the end: until then other ranks wait for this rank's messages. */
static void record_error(Load *l, Err err)
{
    if (err == OK || l->err != OK) return;
    l->err = err;
    snprintf(l->text, sizeof l->text, "%s", err_text());
}

static Err read_chunk(Load *l, const LoadChunk *c)
{
    Slot *slot;
    TRY(take_slot(l, &slot));
    record_error(l, chunk_read(&l->reader, c->part, c->number, l->base + slot->at));
    l->result.read_bytes += load_chunk_bytes(c);
    for (int64_t i = 0, end; i < c->n; i = end) {
        for (end = i; end < c->n && c->move[end].want->rank == c->move[i].want->rank;) end++;
        const Message m = message_of(c, i, end);
        if (m.move[0].want->rank == c->reader)
            TRY(copy_own(l, slot, &m));
        else
            TRY(send_message(l, slot, &m));
    }
    return OK;
}

static Err receive_chunk(Load *l, const Message *m)
{
    const LoadChunk *c = m->chunk;
    Slot *slot;
    TRY(take_slot(l, &slot));
    Transfer t = transfer_of(l, COMM_RECV, c->reader, c);
    t.to.offset = slot->at;
    t.to.count = m->count;
    memcpy(slot->move, m->move, (size_t)m->n * sizeof *m->move);
    slot->tensor = c->tensor;
    slot->element = c->element;
    TRY(begin(l, slot, &t));
    slot->n = m->n;
    return OK;
}

static Err walk(Load *l)
{
    const int me = l->s->rank->settings.program->rank;
    LoadChunk c;
    while (load_plan_next(&l->plan, &c)) {
        int64_t first;
        const int64_t n = load_moves_of(&c, me, &first);
        const Message mine = message_of(&c, first, first + n);
        if (c.reader == me)
            TRY(read_chunk(l, &c));
        else if (n > 0)
            TRY(receive_chunk(l, &mine));
    }
    for (int i = 0; i < LOAD_SLOTS; i++) TRY(finish(l, &l->slot[(l->next + i) % LOAD_SLOTS]));
    return OK;
}

/* Everything that may fail before the first transfer. */
static Err open_load(Load *l)
{
    const LoadSettings *s = l->s;
    void *base;
    TRY(load_plan_open(&l->plan, s, s->temp));
    TRY(arena_push(s->temp, (size_t)LOAD_SLOTS * SLOT_BYTES, &base));
    l->base = base;
    if (s->rank->settings.program->no_master) TRY(ARENA_NEW(s->temp, CHUNK_BYTES, &l->narrow));
    for (int i = 0; i < LOAD_SLOTS; i++) {
        l->slot[i].at = (size_t)i * SLOT_BYTES;
        TRY(ARENA_NEW(s->temp, l->plan.max_moves, &l->slot[i].move));
    }
    if (!s->comm) return OK;
    return comm_register(s->comm, ARENA_LOAD, base, (size_t)LOAD_SLOTS * SLOT_BYTES);
}

/* Initializes the moments of a job that starts from weights. */
static Err zero_moments(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int p = 0; p < lp->model->n_packs; p++)
        for (int m = 0; m < lp->n_moments; m++) {
            const Tensor home = rank_home(r, p, m ? PART_MOMENT2 : PART_MOMENT1);
            TRY(rank_fill(r, home.data, 0, (size_t)home.n[0] * dtype_bytes(home.dtype)));
        }
    return OK;
}

Err state_load(const LoadSettings *s, LoadResult *out)
{
    Load l = {.s = s, .reader = chunk_reader(s->manifest)};
    const size_t mark = arena_mark(s->temp);
    Err err = open_load(&l);
    if (s->comm) err = comm_agree(s->comm, s->all, err);
    if (err == OK) err = walk(&l);
    chunk_reader_close(&l.reader);
    arena_rewind(s->temp, mark);
    TRY(err);
    if (s->scope == LOAD_WEIGHTS) TRY(zero_moments(s->rank));
    TRY(rank_publish(s->rank));
    *out = l.result;
    return l.err == OK ? OK : err_fail(l.err, "%s", l.text);
}
