/* local.c -- ranks in one process; of one rank so far.
 *
 * Over the group {0} every collective is a copy, or nothing when in place. A send to oneself meets
 * the oldest receive on its group that has no partner yet, and the other way round:
 *
 *     begin send #0      begin recv #1      wait      a pair is matched when its second half begins
 *     POSTED             MATCHED, moved     DONE
 *
 * With nobody else to post the other half, a wait for what is not matched could only hang; it is an
 * error instead. In hostile mode a transfer is moved late, when waited for, if its coin says so;
 * from its begin until then `to` is full of 0xFF, and what may not wait so long (the source of an
 * in-place transfer, of a send that completes first) rests in a staging arena. */
#include "comm/local/local.h"

#include <string.h>
#include "base/philox.h"
#include "comm/backend.h"

typedef struct {
    int partner;  /* slot of the other half of a pair; -1 */
    bool late;    /* moved when waited for */
    void *staged; /* where the source rests; NULL: where the transfer says */
} Half;

typedef struct {
    Half *half; /* by slot */
    Arena staging;
    int n_staged;
    Random coin;
} Local;

static Err stage(Comm *c, int slot, const Ref *source)
{
    Local *l = c->state;
    if (ref_bytes(source) == 0) return OK;
    if (l->n_staged == 0) arena_rewind(&l->staging, 0);
    TRY(arena_push(&l->staging, ref_bytes(source), &l->half[slot].staged));
    memcpy(l->half[slot].staged, comm_at(c, source), ref_bytes(source));
    l->n_staged++;
    return OK;
}

/* Moves what arrives in `slot`, from staging or from where `source` says. */
static void move(Comm *c, int slot, const Ref *source)
{
    Local *l = c->state;
    Half *h = &l->half[slot];
    const Ref *to = &c->pending[slot].t.to;
    if (ref_bytes(to) > 0)
        memmove(comm_at(c, to), h->staged ? h->staged : comm_at(c, source), ref_bytes(to));
    if (h->staged) l->n_staged--;
    h->staged = NULL;
}

static void poison(const Comm *c, const Ref *to)
{
    if (ref_bytes(to) > 0) memset(comm_at(c, to), 0xFF, ref_bytes(to));
}

static Err collective_begin(Comm *c, int slot)
{
    const Transfer *t = &c->pending[slot].t;
    const Half *h = &((Local *)c->state)->half[slot];
    comm_progress(c, slot, MATCHED);
    if (!h->late) {
        move(c, slot, &t->from);
        comm_progress(c, slot, DONE);
        return OK;
    }
    if (t->from.arena == t->to.arena && t->from.offset == t->to.offset)
        TRY(stage(c, slot, &t->from));
    poison(c, &t->to);
    return OK;
}

/* The oldest transfer of that kind on the same group that has no partner; -1 if there is none. */
static int unmatched(const Comm *c, CommKind kind, int32_t group)
{
    int oldest = -1;
    for (int i = 0; i < c->set.in_flight; i++) {
        const Pending *p = &c->pending[i];
        if (!p->busy || p->t.kind != kind || p->group != group || p->progress != POSTED) continue;
        if (oldest < 0 || p->number < c->pending[oldest].number) oldest = i;
    }
    return oldest;
}

static Err pair_check(const Pending *send, const Pending *recv)
{
    char a[TRANSFER_NAME_BYTES], b[TRANSFER_NAME_BYTES];
    const Ref *from = &send->t.from, *to = &recv->t.to;
    if (from->count != to->count || from->dtype != to->dtype)
        return err_fail(ERR_CHECK, "local: %s gives %lld %s; %s takes %lld %s",
                        transfer_name(&send->t, send->sequence, a), (long long)from->count,
                        dtype_name(from->dtype), transfer_name(&recv->t, recv->sequence, b),
                        (long long)to->count, dtype_name(to->dtype));
    if (from->arena == to->arena && from->offset < to->offset + ref_bytes(to) &&
        to->offset < from->offset + ref_bytes(from))
        return err_fail(ERR_CHECK, "local: %s and %s overlap in arena %d (offsets %zu and %zu)",
                        transfer_name(&send->t, send->sequence, a),
                        transfer_name(&recv->t, recv->sequence, b), from->arena, from->offset,
                        to->offset);
    return OK;
}

static Err pair_begin(Comm *c, int slot)
{
    Local *l = c->state;
    const Pending *p = &c->pending[slot];
    const bool is_send = p->t.kind == COMM_SEND;
    const int other = unmatched(c, is_send ? COMM_RECV : COMM_SEND, p->group);
    const int send = is_send ? slot : other, recv = is_send ? other : slot;
    if (other >= 0) TRY(pair_check(&c->pending[send], &c->pending[recv]));
    if (c->set.hostile && !is_send) poison(c, &p->t.to);
    if (other < 0) return OK;
    l->half[send].partner = recv;
    l->half[recv].partner = send;
    comm_progress(c, send, MATCHED);
    comm_progress(c, recv, MATCHED);
    if (l->half[recv].late) return OK;
    move(c, recv, &c->pending[send].t.from);
    comm_progress(c, send, DONE);
    comm_progress(c, recv, DONE);
    return OK;
}

static Err local_begin(Comm *c, int slot)
{
    Local *l = c->state;
    const Pending *p = &c->pending[slot];
    const bool late = c->set.hostile && (random_bits(&l->coin, (uint64_t)p->number) & 1);
    l->half[slot] = (Half){.partner = -1, .late = late};
    return p->t.kind == COMM_SEND || p->t.kind == COMM_RECV ? pair_begin(c, slot)
                                                            : collective_begin(c, slot);
}

/* A send that is waited for before its late receive: its source may change from now on. */
static Err send_finish(Comm *c, int slot)
{
    Local *l = c->state;
    const int recv = l->half[slot].partner;
    TRY(stage(c, recv, &c->pending[slot].t.from));
    l->half[recv].partner = -1;
    comm_progress(c, slot, DONE);
    return OK;
}

static void recv_finish(Comm *c, int slot)
{
    const int send = ((Local *)c->state)->half[slot].partner;
    const Ref *source = send < 0 ? NULL : &c->pending[send].t.from; /* none: it is staged */
    move(c, slot, source);
    comm_progress(c, slot, DONE);
    if (send >= 0) comm_progress(c, send, DONE);
}

static Err local_wait(Comm *c, int slot)
{
    const Pending *p = &c->pending[slot];
    char name[TRANSFER_NAME_BYTES];
    if (p->progress == DONE) return OK;
    if (p->progress == POSTED)
        return err_fail(
            ERR_CHECK,
            "local: %s has no %s to meet on its group, and with one rank none can come; "
            "begin both before waiting for either",
            transfer_name(&p->t, p->sequence, name), p->t.kind == COMM_SEND ? "recv" : "send");
    if (p->t.kind == COMM_SEND) return send_finish(c, slot);
    if (p->t.kind == COMM_RECV) {
        recv_finish(c, slot);
        return OK;
    }
    move(c, slot, &p->t.from);
    comm_progress(c, slot, DONE);
    return OK;
}

static void local_close(Comm *c)
{
    Local *l = c->state;
    if (c->set.hostile) arena_close(&l->staging);
}

static const CommTable local_table = {
    .name = "local", .begin = local_begin, .wait = local_wait, .close = local_close};

Err local_open(Arena *a, const CommSettings *set, Comm **out)
{
    Local *l;
    if (set->ranks != 1 || set->rank != 0)
        return err_fail(ERR_CONFIG,
                        "local: rank %d of %d ranks; more than one rank is not yet supported; set "
                        "run.ranks=1",
                        set->rank, set->ranks);
    Comm *c;
    TRY(ARENA_NEW(a, 1, &l));
    TRY(comm_open(a, set, &local_table, l, &c));
    TRY(ARENA_NEW(a, set->in_flight, &l->half));
    l->coin = random_named(set->seed, "late transfers");
    if (set->hostile) TRY(arena_open(&l->staging, "staged transfers", ARENA_PLENTY));
    *out = c;
    return OK;
}
