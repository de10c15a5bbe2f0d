/* flow.c -- elements in flight between two ranks, in chunks.
 *
 *     flow     [ done ......... | in flight: WINDOW chunks | not begun ........ ]
 *                                                          ^ limit: begins no chunk beyond it
 *
 * Limits order the flows of a reduction:
 *
 *     my part, from member i   into scratch: WINDOW chunks beyond the folded bytes
 *     my segment, to all       the folded bytes
 *     segment i, from i        the bytes sent to i: in place, they are the same memory */
#include "comm/mpi/mpi_parts.h"

#include <string.h>
#include "base/clock.h"
#include "base/math.h"
#include "comm/fold.h"

static Flow flow_of(const MpiFlight *f, int place, char *at, int64_t count, size_t each)
{
    Flow flow = {.at = at, .bytes = (size_t)count * each, .rank = f->member[place]};
    for (int i = 0; i < WINDOW; i++) flow.request[i] = MPI_REQUEST_NULL;
    return flow;
}

/* Segment i of an array that is split over n members, the first ones one element longer. */
static int64_t segment_count(int64_t count, int n, int i) { return count / n + (i < count % n); }

static int64_t segment_start(int64_t count, int n, int i)
{
    return count / n * i + (i < count % n ? i : count % n);
}

/* One row of the table in mpi_parts.h: the flows to and from the member at index i. */
static void split_member(const Comm *c, int slot, int i)
{
    const MpiFlight *f = &((const MpiComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const int n = f->n, me = f->me;
    const bool reads = transfer_reads(t, c->set.rank), writes = transfer_writes(t);
    const size_t each = dtype_bytes(writes ? t->to.dtype : t->from.dtype);
    char *from = reads ? comm_at(c, &t->from) : NULL, *to = writes ? comm_at(c, &t->to) : NULL;
    const int64_t whole = writes ? t->to.count : t->from.count;
    const int64_t start = segment_start(whole, n, i), mine = segment_start(whole, n, me);
    int64_t give = 0, give_at = 0, take = 0, take_at = 0;
    Peer *p = &f->peer[i];
    p->out[1] = p->in[1] = flow_of(f, i, NULL, 0, each);
    switch (t->kind) {
    case COMM_ALL_REDUCE:
        give = segment_count(whole, n, i), give_at = start;
        take = segment_count(whole, n, me);
        p->out[1] = flow_of(f, i, to + (size_t)mine * each, take, each);
        p->in[1] = flow_of(f, i, to + (size_t)start * each, give, each);
        break;
    case COMM_REDUCE_SCATTER:
        give = part_count(t->from_counts, t->from.count, n, i);
        give_at = part_start(t->from_counts, t->from.count, n, i);
        take = t->to.count;
        break;
    case COMM_ALL_GATHER:
        give = t->from.count;
        take = part_count(t->to_counts, t->to.count, n, i);
        take_at = part_start(t->to_counts, t->to.count, n, i);
        break;
    case COMM_ALL_TO_ALL:
        give = part_count(t->from_counts, t->from.count, n, i);
        give_at = part_start(t->from_counts, t->from.count, n, i);
        take = part_count(t->to_counts, t->to.count, n, i);
        take_at = part_start(t->to_counts, t->to.count, n, i);
        break;
    default: /* broadcast, send, recv: the root sends; the others receive from it only */
        if (reads) give = t->from.count;
        if (!reads && f->member[i] == t->from.rank) take = t->to.count;
        break;
    }
    p->out[0] = flow_of(f, i, give ? from + (size_t)give_at * each : NULL, give, each);
    p->in[0] = flow_of(f, i, f->folds || !take ? NULL : to + (size_t)take_at * each, take, each);
    for (int phase = 0; phase < PHASES; phase++) {
        p->out[phase].tag = DATA_TAG + PHASES * slot + phase;
        p->in[phase].tag = DATA_TAG + PHASES * p->message->post.slot + phase;
    }
}

/* Copies the elements that stay on this rank. */
static void copy_mine(const Comm *c, int slot)
{
    const MpiFlight *f = &((const MpiComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const size_t each = dtype_bytes(t->to.dtype);
    int64_t from = 0, to = 0, count = t->from.count;
    if (f->folds || !transfer_writes(t) || !transfer_reads(t, c->set.rank)) return;
    if (t->kind == COMM_ALL_GATHER) to = part_start(t->to_counts, t->to.count, f->n, f->me);
    if (t->kind == COMM_ALL_TO_ALL) {
        from = part_start(t->from_counts, t->from.count, f->n, f->me);
        to = part_start(t->to_counts, t->to.count, f->n, f->me);
        count = part_count(t->from_counts, t->from.count, f->n, f->me);
    }
    if (count > 0)
        memmove((char *)comm_at(c, &t->to) + (size_t)to * each,
                (const char *)comm_at(c, &t->from) + (size_t)from * each, (size_t)count * each);
}

void flow_split(Comm *c, int slot)
{
    const MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    f->folds = t->kind == COMM_ALL_REDUCE || t->kind == COMM_REDUCE_SCATTER;
    f->chunk = f->folds ? m->scratch_chunk : CHUNK_BYTES;
    if (f->folds) {
        const int64_t mine =
            t->kind == COMM_REDUCE_SCATTER ? t->to.count : segment_count(t->to.count, f->n, f->me);
        f->mine = (size_t)mine * dtype_bytes(t->to.dtype);
    }
    for (int i = 0; i < f->n; i++)
        if (i != f->me) split_member(c, slot, i);
    copy_mine(c, slot);
}

/* Chunk buffers alternate by chunk number: WINDOW of them per rank. */
static char *scratch_at(const MpiComm *m, size_t begun, size_t chunk, int rank)
{
    const size_t turn = begun / chunk % WINDOW;
    return m->scratch + (turn * (size_t)m->world->base.ranks + (size_t)rank) * m->scratch_chunk;
}

typedef struct {
    const MpiComm *m;
    size_t chunk;
    bool *moved;
} FlowContext;

/* Completes chunks in the order in which they were begun. */
static Err retire(const FlowContext *v, Flow *w)
{
    while (w->done < w->begun) {
        int over = 0;
        TRY(mpi_ok(MPI_Test(&w->request[w->done / v->chunk % WINDOW], &over, MPI_STATUS_IGNORE),
                   "move elements"));
        if (!over) break;
        w->done += min_size(v->chunk, w->bytes - w->done);
        *v->moved = true;
    }
    return OK;
}

static Err move(const FlowContext *v, Flow *w, bool out, size_t limit)
{
    const MPI_Comm comm = v->m->world->comm;
    if (w->done == w->bytes) return OK;
    TRY(retire(v, w));
    while (w->begun < w->bytes && w->begun < w->done + WINDOW * v->chunk) {
        const size_t some = min_size(v->chunk, w->bytes - w->begun);
        MPI_Request *request = &w->request[w->begun / v->chunk % WINDOW];
        char *at = w->at ? w->at + w->begun : scratch_at(v->m, w->begun, v->chunk, w->rank);
        if (w->begun + some > limit) break;
        const int rc = out ? MPI_Issend(at, (int)some, MPI_BYTE, w->rank, w->tag, comm, request)
                           : MPI_Irecv(at, (int)some, MPI_BYTE, w->rank, w->tag, comm, request);
        TRY(mpi_ok(rc, "move elements"));
        w->begun += some;
        *v->moved = true;
    }
    return OK;
}

/* Folds `count` elements from the sources into `out`, through a block on the stack: `out` may be
 * one of the sources. */
static void fold_blocks(const Comm *c, int slot, const Fold *of, int64_t count, char *out)
{
    _Alignas(ARENA_ALIGN) char block[MAX_FOLD_ELEMENTS * sizeof(double)];
    const size_t each = dtype_bytes(c->pending[slot].t.to.dtype);
    for (int64_t at = 0; at < count; at += MAX_FOLD_ELEMENTS) {
        const int64_t some = count - at < MAX_FOLD_ELEMENTS ? count - at : MAX_FOLD_ELEMENTS;
        fold(of, at, some, block);
        memcpy(out + (size_t)at * each, block, (size_t)some * each);
    }
}

/* Folds the next chunk of my part, once it has arrived from all members. */
static void fold_piece(Comm *c, int slot, bool *moved)
{
    MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const size_t each = dtype_bytes(t->to.dtype), some = min_size(f->chunk, f->mine - f->folded);
    const bool scatter = t->kind == COMM_REDUCE_SCATTER;
    if (f->folded == f->mine) return;
    for (int i = 0; i < f->n; i++)
        if (i != f->me && f->peer[i].in[0].done < f->folded + some) return;
    const int64_t start = scatter ? part_start(t->from_counts, t->from.count, f->n, f->me)
                                  : segment_start(t->to.count, f->n, f->me);
    const size_t at = (size_t)start * each + f->folded;
    for (int i = 0; i < f->n; i++)
        m->source[i] = i == f->me ? (const char *)comm_at(c, &t->from) + at
                                  : scratch_at(m, f->folded, f->chunk, f->member[i]);
    const Fold of = {t->to.dtype, t->reduce, f->n, m->source};
    fold_blocks(c, slot, &of, (int64_t)(some / each),
                (char *)comm_at(c, &t->to) + (scatter ? f->folded : at));
    f->folded += some;
    *moved = true;
}

static bool is_over(const MpiFlight *f)
{
    if (f->folded < f->mine) return false;
    for (int i = 0; i < f->n; i++)
        for (int phase = 0; i != f->me && phase < PHASES; phase++) {
            const Peer *p = &f->peer[i];
            if (p->out[phase].done < p->out[phase].bytes) return false;
            if (p->in[phase].done < p->in[phase].bytes) return false;
        }
    return true;
}

Err flow_move(Comm *c, int slot, bool *moved, bool *over)
{
    MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    const FlowContext v = {m, f->chunk, moved};
    if (f->folded < f->mine && m->scratch_slot < 0) m->scratch_slot = slot;
    const bool may_fold = !f->folds || m->scratch_slot == slot;
    /* Each rank starts with its right neighbour, so that no rank is the first target of all. */
    for (int k = 1; k < f->n; k++) {
        Peer *p = &f->peer[(f->me + k) % f->n];
        TRY(move(&v, &p->out[0], true, SIZE_MAX));
        if (may_fold)
            TRY(move(&v, &p->in[0], false, f->folds ? f->folded + WINDOW * f->chunk : SIZE_MAX));
    }
    if (may_fold && f->folds) fold_piece(c, slot, moved);
    if (m->scratch_slot == slot && f->folded == f->mine) m->scratch_slot = -1;
    for (int k = 1; k < f->n; k++) {
        Peer *p = &f->peer[(f->me + k) % f->n];
        TRY(move(&v, &p->out[1], true, f->folded));
        TRY(move(&v, &p->in[1], false, p->out[0].done));
    }
    *over = is_over(f);
    return OK;
}

void flow_eager(Comm *c, int slot)
{
    MpiComm *m = c->state;
    const MpiFlight *f = &m->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    if (!transfer_writes(t) || t->to.count == 0) return;
    const size_t each = dtype_bytes(t->to.dtype);
    char *to = comm_at(c, &t->to);
    for (int i = 0; i < f->n; i++)
        m->source[i] = i == f->me ? f->message + sizeof(MpiPost) : f->peer[i].message->body;
    const Fold of = {t->to.dtype, t->reduce, f->n, m->source};
    if (t->kind == COMM_ALL_REDUCE) {
        fold_blocks(c, slot, &of, t->to.count, to);
    } else if (t->kind == COMM_REDUCE_SCATTER) {
        const int64_t start = part_start(t->from_counts, t->from.count, f->n, f->me);
        for (int i = 0; i < f->n; i++) m->source[i] += (size_t)start * each;
        fold_blocks(c, slot, &of, t->to.count, to);
    } else if (t->kind == COMM_ALL_GATHER) {
        for (int i = 0; i < f->n; i++) {
            const int64_t count = part_count(t->to_counts, t->to.count, f->n, i);
            if (count > 0) memcpy(to, m->source[i], (size_t)count * each);
            to += (size_t)count * each;
        }
    } else {
        const int root = t->kind == COMM_RECV ? 0 : group_index(t->group, t->from.rank);
        memcpy(to, m->source[root], ref_bytes(&t->to));
    }
}

static int requests_left(MpiFlight *f, bool cancel)
{
    int left = 0;
    for (int i = 0; i < f->n; i++)
        for (int k = 0; i != f->me && k < PHASES * WINDOW; k++) {
            MPI_Request *out = &f->peer[i].out[k / WINDOW].request[k % WINDOW];
            MPI_Request *in = &f->peer[i].in[k / WINDOW].request[k % WINDOW];
            int over;
            if (cancel && *in != MPI_REQUEST_NULL) MPI_Cancel(in);
            if (MPI_Test(in, &over, MPI_STATUS_IGNORE) != MPI_SUCCESS || !over) left++;
            (void)MPI_Test(out, &over, MPI_STATUS_IGNORE); /* lets a peer's receive complete */
        }
    return left;
}

bool flow_cancel(Comm *c, int slot)
{
    MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    const double since_s = now_s();
    const bool flows = f->state == MOVING && !f->eager && !c->pending[slot].by_transport;
    int left = flows ? requests_left(f, true) : 0;
    while (left > 0 && now_s() - since_s < 0.2) left = requests_left(f, false);
    return left == 0;
}
