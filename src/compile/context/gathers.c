/* gathers.c -- finds the transfers around attention, through the packs of their messages. */
#include "compile/context/gathers.h"

static Err not_gathered(const OldNodes *old, Value v)
{
    return err_fail(ERR_CHECK,
                    "graph %s: %%%d %s: attention reads it, but it is not gathered over cp",
                    old->g->kind, v, old->g->value[v].name);
}

/* Looks through packs of a message. */
static int maker_before_packs(const OldNodes *old, Value v)
{
    int m = old->maker[v];
    while (m != NO_NODE && old->node[m].op == OP_pack) m = old->maker[old->node[m].in[0]];
    return m;
}

Err gathers_drop(const OldNodes *old, Value v, const TransferPart **move, Value *local)
{
    const int wait = maker_before_packs(old, v);
    if (wait == NO_NODE || old->node[wait].op != OP_wait) return not_gathered(old, v);
    const int gather = old->maker[old->node[wait].in[0]];
    if (gather == NO_NODE || old->node[gather].op != OP_all_gather) return not_gathered(old, v);
    for (int m = old->maker[v]; m != gather; m = old->maker[old->node[m].in[0]])
        old->dropped[m] = true;
    old->dropped[gather] = true;
    *move = &old->g->move[old->node[gather].attr.move.index];
    *local = old->node[gather].in[0];
    for (int m; (m = old->maker[*local]) != NO_NODE && old->node[m].op == OP_pack;) {
        old->dropped[m] = true;
        *local = old->node[m].in[0];
    }
    return OK;
}

static int reader_of(const OldNodes *old, Value v)
{
    for (int i = 0; i < old->n; i++)
        for (int j = 0; j < old->node[i].n_in; j++)
            if (old->node[i].in[j] == v) return i;
    return NO_NODE;
}

Err gathers_drop_scatter(const OldNodes *old, Value v, Value *local)
{
    for (bool scattered = false;;) {
        const int i = reader_of(old, v);
        const OpId op = i == NO_NODE ? OP_add : old->node[i].op;
        if (op != OP_pack && op != OP_reduce_scatter && !(scattered && op == OP_wait)) {
            *local = v;
            return scattered ? OK : not_gathered(old, v);
        }
        scattered = scattered || op == OP_reduce_scatter;
        old->dropped[i] = true;
        v = old->node[i].out[0];
    }
}
