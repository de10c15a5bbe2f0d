/* check.c -- checks of a transfer that one rank can do alone before it begins; its name and its
 * bytes. */
#include "comm/backend.h"

#include <stdio.h>

const char *comm_kind_name(CommKind kind)
{
    static const char *const name[N_COMM_KINDS] = {
        "send", "recv", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"};
    return name[kind];
}

const char *transfer_name(const Transfer *t, int64_t sequence, char name[TRANSFER_NAME_BYTES])
{
    const int cap = TRANSFER_NAME_BYTES;
    const bool send = t->kind == COMM_SEND;
    int at = snprintf(name, (size_t)cap, "%s #%lld", comm_kind_name(t->kind), (long long)sequence);
    if (send || t->kind == COMM_RECV)
        at += snprintf(name + at, (size_t)(cap - at), send ? " to rank %d" : " from rank %d",
                       send ? t->to.rank : t->from.rank);
    at += snprintf(name + at, (size_t)(cap - at), " over {");
    for (int i = 0; i < t->group.n && i < 8; i++)
        at += snprintf(name + at, (size_t)(cap - at), "%s%d", i ? " " : "", t->group.rank[i]);
    snprintf(name + at, (size_t)(cap - at), "%s}, instruction %d", t->group.n > 8 ? " ..." : "",
             t->instr);
    return name;
}

bool transfer_reads(const Transfer *t, int rank)
{
    return t->kind != COMM_RECV && (t->kind != COMM_BROADCAST || t->from.rank == rank);
}

bool transfer_writes(const Transfer *t) { return t->kind != COMM_SEND; }

/* Arguments of the checks below, and all that their messages need. */
typedef struct {
    const Comm *c;
    const Transfer *t;
    int64_t sequence;
    int me;       /* my index in the group */
    char *buffer; /* [TRANSFER_NAME_BYTES] filled only for an error: formatting is slow */
} CheckContext;

static const char *name_of(const CheckContext *k)
{
    return transfer_name(k->t, k->sequence, k->buffer);
}

static Err ref_check(const CheckContext *k, const Ref *r, const char *side)
{
    const Comm *c = k->c;
    if (r->rank != c->set.rank)
        return err_fail(ERR_CHECK,
                        "comm: %s: `%s` is memory of rank %d; rank %d can only name its own",
                        name_of(k), side, r->rank, c->set.rank);
    if ((unsigned)r->dtype >= N_DTYPES || r->count < 0)
        return err_fail(ERR_CHECK, "comm: %s: `%s` has %lld elements of type %d", name_of(k), side,
                        (long long)r->count, (int)r->dtype);
    if (r->arena < 0 || r->arena > COMM_OWN)
        return err_fail(ERR_CHECK, "comm: %s: `%s` is in arena %d; ids are 0 to %d", name_of(k),
                        side, r->arena, MAX_COMM_ARENAS - 1);
    const size_t limit = c->memory[r->arena].bytes, each = dtype_bytes(r->dtype);
    if (r->offset > limit || (uint64_t)r->count > (limit - r->offset) / each)
        return err_fail(ERR_CHECK,
                        "comm: %s: `%s` is %lld %s at offset %zu of arena %d, whose limit is %zu "
                        "bytes",
                        name_of(k), side, (long long)r->count, dtype_name(r->dtype), r->offset,
                        r->arena, limit);
    if (r->offset % each != 0)
        return err_fail(ERR_CHECK,
                        "comm: %s: `%s` begins at offset %zu of arena %d, not a multiple "
                        "of %zu bytes",
                        name_of(k), side, r->offset, r->arena, each);
    return OK;
}

int64_t part_start(const int64_t *counts, int64_t total, int n, int place)
{
    int64_t at = 0;
    if (!counts) return total / n * place;
    for (int i = 0; i < place; i++) at += counts[i];
    return at;
}

int64_t part_count(const int64_t *counts, int64_t total, int n, int place)
{
    return counts ? counts[place] : total / n;
}

/* `whole` holds one part per member: checks that the parts fill it and that my part has as many
 * elements as `mine` (NULL: not checked). */
static Err parts_check(const CheckContext *k, const Ref *whole, const int64_t *counts,
                       const Ref *mine)
{
    const int n = k->t->group.n;
    for (int i = 0; counts && i < n; i++)
        if (counts[i] < 0)
            return err_fail(ERR_CHECK, "comm: %s: member %d has %lld elements", name_of(k), i,
                            (long long)counts[i]);
    if (!counts && whole->count % n != 0)
        return err_fail(ERR_CHECK,
                        "comm: %s: %lld elements do not divide by %d members; give counts",
                        name_of(k), (long long)whole->count, n);
    if (counts && part_start(counts, 0, n, n) != whole->count)
        return err_fail(ERR_CHECK, "comm: %s: the counts of %d members sum to %lld, not to %lld",
                        name_of(k), n, (long long)part_start(counts, 0, n, n),
                        (long long)whole->count);
    const int64_t part = part_count(counts, whole->count, n, k->me);
    if (mine && part != mine->count)
        return err_fail(ERR_CHECK, "comm: %s: the part of member %d is %lld elements, not %lld",
                        name_of(k), k->me, (long long)mine->count, (long long)part);
    return OK;
}

/* An overlap is legal only in place: `inner` begins at element `start` of `outer`; -1: never. */
static Err overlap_check(const CheckContext *k, const Ref *outer, const Ref *inner, int64_t start)
{
    const size_t outer_end = outer->offset + ref_bytes(outer);
    const size_t inner_end = inner->offset + ref_bytes(inner);
    if (outer->arena != inner->arena || outer->offset >= inner_end || inner->offset >= outer_end)
        return OK;
    if (start >= 0 && inner->offset == outer->offset + (size_t)start * dtype_bytes(outer->dtype))
        return OK;
    return err_fail(ERR_CHECK,
                    "comm: %s: `from` and `to` overlap in arena %d (offsets %zu and %zu) and are "
                    "not in place; keep them apart",
                    name_of(k), outer->arena, k->t->from.offset, k->t->to.offset);
}

static Err peer_check(const CheckContext *k, int peer)
{
    if (group_index(k->t->group, peer) >= 0) return OK;
    return err_fail(ERR_CHECK, "comm: %s: rank %d is not in the group", name_of(k), peer);
}

static Err collective_check(const CheckContext *k)
{
    const Transfer *t = k->t;
    const int n = t->group.n;
    if (t->kind == COMM_ALL_GATHER) {
        TRY(parts_check(k, &t->to, t->to_counts, &t->from));
        return overlap_check(k, &t->to, &t->from, part_start(t->to_counts, t->to.count, n, k->me));
    }
    if (t->kind == COMM_REDUCE_SCATTER) {
        TRY(parts_check(k, &t->from, t->from_counts, &t->to));
        return overlap_check(k, &t->from, &t->to,
                             part_start(t->from_counts, t->from.count, n, k->me));
    }
    if (t->kind == COMM_ALL_TO_ALL) {
        TRY(parts_check(k, &t->from, t->from_counts, NULL));
        TRY(parts_check(k, &t->to, t->to_counts, NULL));
        if (part_count(t->from_counts, t->from.count, n, k->me) !=
            part_count(t->to_counts, t->to.count, n, k->me))
            return err_fail(ERR_CHECK,
                            "comm: %s: the part that stays with member %d has two counts",
                            name_of(k), k->me);
        return overlap_check(k, &t->to, &t->from, -1);
    }
    if (t->from.count != t->to.count)
        return err_fail(ERR_CHECK, "comm: %s: %lld elements `from`, %lld `to`", name_of(k),
                        (long long)t->from.count, (long long)t->to.count);
    return overlap_check(k, &t->to, &t->from, 0);
}

static Err counts_check(const CheckContext *k)
{
    const Transfer *t = k->t;
    const bool from = t->kind == COMM_REDUCE_SCATTER || t->kind == COMM_ALL_TO_ALL;
    const bool to = t->kind == COMM_ALL_GATHER || t->kind == COMM_ALL_TO_ALL;
    if ((t->from_counts && !from) || (t->to_counts && !to))
        return err_fail(ERR_CHECK, "comm: %s: this kind has no counts on that side", name_of(k));
    if (from && to && !t->from_counts != !t->to_counts)
        return err_fail(ERR_CHECK, "comm: %s: give the counts of both sides, or of none",
                        name_of(k));
    return OK;
}

Err transfer_check(const Comm *c, const Transfer *t, int64_t sequence)
{
    char name[TRANSFER_NAME_BYTES];
    MUST((unsigned)t->kind < N_COMM_KINDS, "rank %d: kind %d", c->set.rank, (int)t->kind);
    const CheckContext k = {c, t, sequence, group_index(t->group, c->set.rank), name};
    const bool reads = transfer_reads(t, c->set.rank), writes = transfer_writes(t);
    TRY(counts_check(&k));
    if (reads) TRY(ref_check(&k, &t->from, "from"));
    if (writes) TRY(ref_check(&k, &t->to, "to"));
    if (t->kind == COMM_SEND) return peer_check(&k, t->to.rank);
    if (!reads)
        return peer_check(&k, t->from.rank); /* a receive, or a broadcast from another rank */
    if (t->from.dtype != t->to.dtype)
        return err_fail(ERR_CHECK, "comm: %s: `from` is %s, `to` is %s; cast before", name_of(&k),
                        dtype_name(t->from.dtype), dtype_name(t->to.dtype));
    if (dtype_is_fp8(t->from.dtype) &&
        (t->kind == COMM_ALL_REDUCE || t->kind == COMM_REDUCE_SCATTER))
        return err_fail(ERR_CHECK,
                        "comm: %s: values of type %s have scales of their own; widen before a sum",
                        name_of(&k), dtype_name(t->from.dtype));
    if (c->memory[t->from.arena].on_device != c->memory[t->to.arena].on_device)
        return err_fail(ERR_CHECK,
                        "comm: %s: one of `from` (arena %d) and `to` (arena %d) is memory of a "
                        "device, the other is not; copy before",
                        name_of(&k), t->from.arena, t->to.arena);
    return collective_check(&k);
}

size_t transfer_sent(const Transfer *t, int rank)
{
    const int64_t n = t->group.n, count = t->from.count;
    const int me = group_index(t->group, rank);
    int64_t sent = 0;
    switch (t->kind) {
    case COMM_ALL_REDUCE: {
        const int64_t mine = count / n + (me < count % n);
        sent = count - mine + (n - 1) * mine;
        break;
    }
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_TO_ALL:
        sent = count - part_count(t->from_counts, count, (int)n, me);
        break;
    case COMM_ALL_GATHER:
        sent = (n - 1) * count;
        break;
    case COMM_BROADCAST:
        sent = t->from.rank == rank ? (n - 1) * count : 0;
        break;
    case COMM_SEND:
        sent = t->to.rank == rank ? 0 : count;
        break;
    case COMM_RECV:
    case N_COMM_KINDS:
        break;
    }
    return sent ? (size_t)sent * dtype_bytes(t->from.dtype) : 0;
}
