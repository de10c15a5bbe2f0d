/* post.c -- the rendezvous: posts of the members of a transfer, matched and compared.
 *
 *     begun here first     a post goes to the oldest transfer on its channel that misses it
 *     posts arrive first   they are queued as unexpected; begin takes the oldest of each rank */
#include "comm/mpi/mpi_parts.h"

#include <string.h>

static uint64_t mix(uint64_t hash, int64_t x)
{
    hash = (hash ^ (uint64_t)x) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* Hash of the channel's name: group, purpose and, for a pair, its direction; equal on all
 * members. */
static uint64_t channel_hash(const Transfer *t, int from, int to)
{
    uint64_t hash = mix(mix(mix(0x5ea4, t->purpose), from), to);
    for (int i = 0; i < t->group.n; i++) hash = mix(hash, t->group.rank[i]);
    return mix(hash, t->group.n);
}

static void find_members(const Comm *c, int slot)
{
    MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const bool send = t->kind == COMM_SEND;
    if (!send && t->kind != COMM_RECV) {
        f->n = t->group.n;
        f->member = t->group.rank;
        f->me = group_index(t->group, c->set.rank);
        f->channel = channel_hash(t, -1, -1);
        return;
    }
    f->pair[0] = send ? c->set.rank : t->from.rank;
    f->pair[1] = send ? t->to.rank : c->set.rank;
    f->n = 2;
    f->member = f->pair;
    f->me = !send;
    f->channel = channel_hash(t, f->pair[0], f->pair[1]);
}

/* Depends only on the signature, so that all members decide alike; the counts of an all-to-all are
 * not in it. */
static bool is_eager(const TransferSignature *m, int n)
{
    const int64_t bytes = m->count * (int64_t)dtype_bytes((DType)m->dtype);
    return m->kind != COMM_ALL_TO_ALL && bytes <= MAX_EAGER_BYTES && bytes * n <= MAX_EAGER_WORK;
}

static MpiPost post_of(const Comm *c, int slot)
{
    const MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    MpiPost post;
    memset(&post, 0, sizeof post);
    post.what = POST;
    post.slot = slot;
    post.channel = f->channel;
    post.sequence = c->pending[slot].sequence;
    post.signature = transfer_signature(&c->pending[slot].t);
    return post;
}

/* The post for the member at `place`, and its bytes. Posts of an all-to-all differ by member. */
static char *write_post(const Comm *c, int slot, int place, size_t *bytes)
{
    const MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    *bytes = sizeof(MpiPost);
    if (t->kind == COMM_ALL_TO_ALL) {
        char *message = f->message + sizeof(MpiPost) * (size_t)place;
        ((MpiPost *)(void *)message)->gives =
            part_count(t->from_counts, t->from.count, f->n, place);
        return message;
    }
    if (f->eager && transfer_reads(t, c->set.rank)) *bytes += ref_bytes(&t->from);
    return f->message;
}

/* The memory of the posts must stay until MPI has sent them: posts_sent checks that. */
static Err send_posts(Comm *c, int slot)
{
    MpiProcess *w = ((MpiComm *)c->state)->world;
    MpiFlight *f = &((MpiComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const MpiPost post = post_of(c, slot);
    const int copies = t->kind == COMM_ALL_TO_ALL ? f->n : 1;
    f->eager = !c->pending[slot].by_transport && is_eager(&post.signature, f->n);
    for (int i = 0; i < copies; i++)
        memcpy(f->message + sizeof post * (size_t)i, &post, sizeof post);
    if (f->eager && transfer_reads(t, c->set.rank) && t->from.count > 0)
        memcpy(f->message + sizeof post, comm_at(c, &t->from), ref_bytes(&t->from));
    for (int i = 0; i < f->n; i++) {
        size_t bytes;
        if (i == f->me) continue;
        const char *message = write_post(c, slot, i, &bytes);
        TRY(mpi_ok(MPI_Isend(message, (int)bytes, MPI_BYTE, f->member[i], CONTROL_TAG, w->comm,
                             &f->peer[i].posted),
                   "post a transfer"));
    }
    return OK;
}

static void match_post(Comm *c, int slot, int place, ControlMessage *message)
{
    MpiComm *m = c->state;
    const PendingTransfer *p = &c->pending[slot];
    m->flight[slot].peer[place].message = message;
    m->flight[slot].missing--;
    m->latest[message->from] = (LatestPost){p->row->serial, message->post.signature.instr,
                                            p->t.kind, message->post.sequence};
    if (p->t.kind == COMM_SEND || p->t.kind == COMM_RECV) /* the peer began the other half */
        m->latest[message->from].kind = p->t.kind == COMM_SEND ? COMM_RECV : COMM_SEND;
}

static ControlMessage *take_unexpected(MessageList *list, uint64_t channel)
{
    for (ControlMessage **at = &list->first; *at; at = &(*at)->next) {
        ControlMessage *message = *at;
        if (message->post.channel != channel) continue;
        *at = message->next;
        if (!*at) list->last = at;
        return message;
    }
    return NULL;
}

Err post_begin(Comm *c, int slot)
{
    MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    *f = (MpiFlight){.state = FINISHED, .peer = f->peer, .message = f->message};
    find_members(c, slot);
    for (int i = 0; i < f->n; i++) {
        f->peer[i].message = NULL;
        f->peer[i].posted = MPI_REQUEST_NULL;
    }
    if (f->n == 2 && f->member[0] == f->member[1]) {
        f->state = SELF_PAIR;
        return OK;
    }
    f->missing = f->n - 1;
    TRY(send_posts(c, slot));
    for (int i = 0; i < f->n; i++) {
        ControlMessage *message =
            i == f->me ? NULL : take_unexpected(&m->unexpected[f->member[i]], f->channel);
        if (message) match_post(c, slot, i, message);
    }
    f->state = WAITING;
    return OK;
}

Err post_arrives(Comm *c, ControlMessage *message)
{
    MpiComm *m = c->state;
    int oldest = -1, place = -1;
    for (int i = 0; i < c->set.in_flight; i++) {
        const MpiFlight *f = &m->flight[i];
        if (f->state != WAITING || f->channel != message->post.channel) continue;
        const int at = group_index((RankList){f->n, f->member}, message->from);
        if (at < 0 || f->peer[at].message) continue;
        if (oldest >= 0 && c->pending[oldest].number < c->pending[i].number) continue;
        oldest = i;
        place = at;
    }
    if (oldest >= 0) {
        match_post(c, oldest, place, message);
        return OK;
    }
    *m->unexpected[message->from].last = message;
    m->unexpected[message->from].last = &message->next;
    return OK;
}

static const MpiPost *post_at(const MpiFlight *f, int place)
{
    return place == f->me ? (const MpiPost *)(const void *)f->message
                          : &f->peer[place].message->post;
}

static Err parts_compare(const Comm *c, int slot)
{
    const MpiFlight *f = &((const MpiComm *)c->state)->flight[slot];
    const PendingTransfer *p = &c->pending[slot];
    char name[TRANSFER_NAME_BYTES];
    for (int i = 0; i < f->n; i++) {
        const int64_t takes = part_count(p->t.to_counts, p->t.to.count, f->n, i);
        if (i == f->me || post_at(f, i)->gives == takes) continue;
        return err_fail(ERR_CHECK,
                        "mpi: %s: rank %d gives %lld elements to rank %d, which takes %lld",
                        transfer_name(&p->t, p->sequence, name), f->member[i],
                        (long long)post_at(f, i)->gives, c->set.rank, (long long)takes);
    }
    return OK;
}

/* Every member compares with the first one, so all find the same difference. */
Err post_compare(const Comm *c, int slot)
{
    const MpiFlight *f = &((const MpiComm *)c->state)->flight[slot];
    for (int i = 1; i < f->n; i++) {
        const char *what =
            signature_first_difference(&post_at(f, 0)->signature, &post_at(f, i)->signature);
        if (!what && post_at(f, 0)->sequence != post_at(f, i)->sequence) what = "sequence number";
        if (what)
            return signature_mismatch(&c->pending[slot], what,
                                      (MemberSignature){f->member[0], &post_at(f, 0)->signature},
                                      (MemberSignature){f->member[i], &post_at(f, i)->signature});
    }
    return c->pending[slot].t.kind == COMM_ALL_TO_ALL ? parts_compare(c, slot) : OK;
}

static int other_half(const Comm *c, int slot)
{
    const MpiComm *m = c->state;
    const PendingTransfer *p = &c->pending[slot];
    for (int i = 0; i < c->set.in_flight; i++)
        if (i != slot && m->flight[i].state == SELF_PAIR && c->pending[i].t.kind != p->t.kind &&
            m->flight[i].channel == m->flight[slot].channel &&
            c->pending[i].sequence == p->sequence)
            return i;
    return -1;
}

Err post_self_pair(Comm *c, int slot, bool *moved)
{
    MpiComm *m = c->state;
    const int other = other_half(c, slot);
    if (other < 0) return OK;
    const bool send = c->pending[slot].t.kind == COMM_SEND;
    const PendingTransfer *s = &c->pending[send ? slot : other];
    const PendingTransfer *r = &c->pending[send ? other : slot];
    const TransferSignature a = transfer_signature(&s->t), b = transfer_signature(&r->t);
    const Ref *from = &s->t.from, *to = &r->t.to;
    const char *what = signature_first_difference(&a, &b);
    char name[TRANSFER_NAME_BYTES];
    if (!what && from->arena == to->arena && from->offset < to->offset + ref_bytes(to) &&
        to->offset < from->offset + ref_bytes(from))
        what = "memory, which overlaps";
    if (what)
        return err_fail(ERR_CHECK,
                        "mpi: %s: its halves differ in their %s: %lld %s sent, %lld %s received",
                        transfer_name(&s->t, s->sequence, name), what, (long long)a.count,
                        dtype_name((DType)a.dtype), (long long)b.count, dtype_name((DType)b.dtype));
    if (to->count > 0) memcpy(comm_at(c, to), comm_at(c, from), ref_bytes(to));
    for (int i = 0; i < 2; i++) {
        const int over = i ? other : slot;
        comm_progress(c, over, MATCHED);
        comm_progress(c, over, DONE);
        m->flight[over].state = FINISHED;
        m->active--;
    }
    *moved = true;
    return OK;
}

void post_end(Comm *c, int slot)
{
    MpiComm *m = c->state;
    MpiFlight *f = &m->flight[slot];
    for (int i = 0; i < f->n; i++) {
        if (i == f->me || !f->peer[i].message) continue;
        f->peer[i].message->next = m->unused;
        m->unused = f->peer[i].message;
        f->peer[i].message = NULL;
    }
}
