/* signature.c -- checks that all members posted the same transfer (kind, dtype, count, root, tag).
 *
 * A rank that was compiled for another plan posts a transfer that does not belong to those of the
 * other members. Configurations are compared at the start of a run, so this is a fault of the
 * compiler. The comparison detects it before any element moves. */
#include "comm/backend.h"

/* FNV-1a of the counts; 0 if all are equal, so that explicit equal counts match NULL. */
static uint64_t hash_parts(const int64_t *counts, int n)
{
    uint64_t hash = 1469598103934665603u;
    bool alike = true;
    for (int i = 0; counts && i < n; i++) {
        alike = alike && counts[i] == counts[0];
        hash = (hash ^ (uint64_t)counts[i]) * 1099511628211u;
    }
    return counts && !alike ? hash : 0;
}

TransferSignature transfer_signature(const Transfer *t)
{
    const bool pair = t->kind == COMM_SEND || t->kind == COMM_RECV;
    const bool folds = t->kind == COMM_ALL_REDUCE || t->kind == COMM_REDUCE_SCATTER;
    TransferSignature m = {.kind = (uint8_t)(pair ? COMM_SEND : t->kind),
                           .reduce = (uint8_t)(folds ? t->reduce : REDUCE_SUM),
                           .dtype = (uint8_t)(transfer_writes(t) ? t->to.dtype : t->from.dtype),
                           .root = t->kind == COMM_BROADCAST ? t->from.rank : -1,
                           .tag = t->tag,
                           .instr = t->instr};
    if (t->kind == COMM_REDUCE_SCATTER || t->kind == COMM_SEND)
        m.count = t->from.count;
    else if (t->kind != COMM_ALL_TO_ALL)
        m.count = t->to.count;
    if (t->kind == COMM_ALL_GATHER) m.parts = hash_parts(t->to_counts, t->group.n);
    if (t->kind == COMM_REDUCE_SCATTER) m.parts = hash_parts(t->from_counts, t->group.n);
    return m;
}

const char *signature_first_difference(const TransferSignature *a, const TransferSignature *b)
{
    if (a->kind != b->kind) return "kind";
    if (a->dtype != b->dtype) return "type of elements";
    if (a->reduce != b->reduce) return "reduction";
    if (a->root != b->root) return "root";
    if (a->count != b->count) return "number of elements";
    if (a->parts != b->parts) return "counts per member";
    if (a->tag != b->tag) return "tag";
    return NULL;
}

Err signature_mismatch(const PendingTransfer *p, const char *what, MemberSignature a,
                       MemberSignature b)
{
    char name[TRANSFER_NAME_BYTES];
    return err_fail(
        ERR_CHECK,
        "comm: ranks %d and %d were compiled for different plans: in %s they differ in their %s: "
        "rank %d began %s of %lld %s, tag %lld, instruction %d; rank %d began %s of %lld %s, tag "
        "%lld, "
        "instruction %d; this is a bug of sheaf: report it with the config.yaml of the run",
        a.rank, b.rank, transfer_name(&p->t, p->sequence, name), what, a.rank,
        comm_kind_name((CommKind)a.signature->kind), (long long)a.signature->count,
        dtype_name((DType)a.signature->dtype), (long long)a.signature->tag, a.signature->instr,
        b.rank, comm_kind_name((CommKind)b.signature->kind), (long long)b.signature->count,
        dtype_name((DType)b.signature->dtype), (long long)b.signature->tag, b.signature->instr);
}
