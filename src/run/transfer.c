/* transfer.c -- makes a Transfer of the comm from an instruction and the table of moves. */
#include "run/transfer.h"

#include "run/rank_parts.h"
#include "schedule/traffic.h"

/* The comm addresses memory by arena and offset. */
static Ref ref_of(const Rank *r, const Tensor *t, int64_t count)
{
    const char *at = t->data;
    Ref ref = {.rank = r->settings.comm ? comm_rank(r->settings.comm) : 0,
               .count = count,
               .dtype = t->dtype};
    for (int i = 0; i < N_ARENAS; i++) {
        if (at < r->base[i] || at >= r->base[i] + memory_arena_bytes(r, i)) continue;
        ref.arena = r->first_arena + i;
        ref.offset = (size_t)(at - r->base[i]);
        return ref;
    }
    MUST(count == 0, "the operand of a transfer is in no arena of the rank");
    return ref;
}

Err transfer_describe(const TransferInstr *t, Transfer *out)
{
    const Instr *in = t->instr;
    if (!t->rank->settings.comm)
        return err_fail(ERR_CHECK, "program %s: %s moves data between ranks, but no comm is given",
                        t->program->kind, op_info(in->op)->name);
    Transfer transfer = instr_transfer(t->program, in);
    transfer.purpose = PURPOSE_PROGRAM;
    if (in->op != OP_recv) /* whose `from` is on the peer, as is `to` of a send */
        transfer.from = ref_of(t->rank, &t->call->in[0], transfer.from.count);
    if (in->op != OP_send) transfer.to = ref_of(t->rank, &t->call->out[0], transfer.to.count);
    transfer.instr = (int32_t)(in - t->program->instr);
    transfer.tag = t->tag;
    *out = transfer;
    return OK;
}

/* A box of the tensor's storage as a tensor. */
static Tensor box_of(const Tensor *whole, const BoxCopy *c, int64_t at, const int64_t *stride)
{
    Tensor x = {.dtype = whole->dtype, .ndim = c->ndim};
    x.data = (char *)whole->data + (size_t)at * dtype_bytes(whole->dtype);
    for (int i = 0; i < c->ndim; i++) {
        x.n[i] = c->n[i];
        x.stride[i] = stride[i];
    }
    return x;
}

Err transfer_pack(const TransferInstr *t)
{
    const TransferPart *m = &t->program->move[t->instr->attr.move.index];
    for (int64_t i = 0; i < m->n_copies; i++) {
        const BoxCopy *b = &m->copy[i];
        Call c = {.n_in = 1, .n_out = 1, .team = t->call->team, .queue = t->call->queue};
        c.in[0] = box_of(&t->call->in[0], b, b->from_at, b->from_stride);
        c.out[0] = box_of(&t->call->out[0], b, b->to_at, b->to_stride);
        if (b->add) {
            c.in[1] = c.in[0];
            c.in[0] = c.out[0];
            c.n_in = 2;
        }
        TRY(t->rank->settings.device->kernel[b->add ? KERNEL_add : KERNEL_copy](&c));
    }
    return OK;
}
