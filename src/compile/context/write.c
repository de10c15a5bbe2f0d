/* write.c -- moves, visits and sums as nodes.
 *
 * A move is an all_to_all in which one peer sends and one receives. Forward, (o, lse) of the visits
 * are merged; backward, their gradients are added. Sums are in the order of the plan, never in that
 * of arrival. */
#include "compile/context/write.h"

#include <string.h>
#include "ir/build.h"

/* The number of transfers so far; packs do not count, since not all ranks have them. */
static int32_t count_transfers(const Graph *g)
{
    int32_t n = 0;
    for (int i = 0; i < g->n_moves; i++) n += g->move[i].group.n > 0;
    return n;
}

/* Sends x to one member of the group, and receives from one a value with the rows of block `in`. */
static Value shift(ContextWriter *w, Value x, const ContextStep *s)
{
    Graph *g = w->g;
    int64_t *from, *to;
    if (g->err == OK) g->err = ARENA_NEW(g->arena, w->ranks, &from);
    if (g->err == OK) g->err = ARENA_NEW(g->arena, w->ranks, &to);
    if (g->err != OK) return NO_VALUE;
    Dims dims = g->value[x].dims;
    from[s->to] = dims_count(&dims);
    dims.dim[0] = w->block[s->in.rank].rows;
    to[s->from] = dims_count(&dims);
    const TransferPart move = {.number = count_transfers(g),
                               .axes = w->gather->axes,
                               .group = w->gather->group,
                               .from_counts = from,
                               .to_counts = to};
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    Node *n = graph_node(g, OP_all_to_all, &attr, 1, &x, &dims, 1);
    if (!n) return NO_VALUE;
    const bool again = w->backward && s->payload == PAYLOAD_KV;
    n->queue = QUEUE_COMM;
    n->recomputed = again;
    const Value y = wait_for(g, n->out[0]);
    if (y != NO_VALUE) g->node[g->n_nodes - 1].recomputed = again;
    return y;
}

static Value sum_of(Graph *g, Value a, Value b)
{
    return a == NO_VALUE ? b : b == NO_VALUE ? a : add(g, a, b);
}

static void add_move(ContextWriter *w, const ContextStep *s)
{
    const BlockValues *out = &w->at[s->out.rank];
    BlockValues *in = &w->at[s->in.rank];
    if (s->payload == PAYLOAD_KV) {
        in->k = shift(w, out->k, s);
        in->v = shift(w, out->v, s);
        return;
    }
    const Value dk = shift(w, out->dk, s), dv = shift(w, out->dv, s);
    in->dk = sum_of(w->g, in->dk, dk);
    in->dv = sum_of(w->g, in->dv, dv);
}

/* The key ranges in the rows of a block. They are not kept for backward, but made again. */
static Value add_ranges(ContextWriter *w, Value ranges, const ContextKeys *block)
{
    Graph *g = w->g;
    if (block->n_spans == 0) return ranges;
    const OpAttr attr = {.kernel.rows = {block->span, block->n_spans}};
    Node *n = graph_node(g, OP_local_ranges, &attr, 1, &ranges, NULL, 1);
    if (!n) return NO_VALUE;
    n->recomputed = w->backward;
    return n->out[0];
}

/* A node of the same op for one block of keys, with wide outputs. */
static const Node *add_visit(ContextWriter *w, const Node *whole, int block)
{
    Graph *g = w->g;
    Value in[MAX_IN];
    OpAttr attr = whole->attr;
    memcpy(in, whole->in, (size_t)whole->n_in * sizeof *in);
    in[1] = w->at[block].k;
    in[2] = w->at[block].v;
    in[3] = add_ranges(w, whole->in[3], &w->block[block]);
    attr.kernel.attention.key_at = w->block[block].n_spans ? 0 : w->block[block].at;
    if (g->err != OK) return NULL;
    const Node *n = graph_node(g, whole->op, &attr, whole->n_in, in, NULL, whole->n_out);
    for (int j = 0; n && j < n->n_out; j++) g->value[n->out[j]].dtype = dtype_wide(g->dtype);
    return n;
}

/* Makes `into`, a value of the old graph, from v: by a cast, or by the node that makes v. */
static void finish(Graph *g, Value v, Value into)
{
    if (g->err != OK) return;
    if (g->value[v].dtype != g->value[into].dtype) {
        cast(g, v, g->value[into].dtype);
        if (g->err == OK) g->node[g->n_nodes - 1].out[0] = into;
        return;
    }
    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int j = 0; j < g->node[i].n_out; j++)
            if (g->node[i].out[j] == v) {
                g->node[i].out[j] = into;
                return;
            }
}

Err context_write_forward(ContextWriter *w, const ContextPlan *p, const Node *whole)
{
    Graph *g = w->g;
    Value o = NO_VALUE, lse = NO_VALUE;
    for (int i = 0; i < p->n[w->me] && g->err == OK; i++) {
        const ContextStep *s = &p->list[w->me][i];
        if (s->kind == CONTEXT_MOVE) {
            add_move(w, s);
            continue;
        }
        const Node *n = add_visit(w, whole, s->k.rank);
        if (n && o != NO_VALUE) {
            const Value in[] = {o, lse, n->out[0], n->out[1]};
            n = graph_node(g, OP_attention_merge, NULL, 4, in, NULL, 2);
        }
        if (!n) break;
        o = n->out[0];
        lse = n->out[1];
    }
    finish(g, lse, whole->out[1]);
    finish(g, o, whole->out[0]);
    return graph_err(g);
}

Err context_write_backward(ContextWriter *w, const ContextPlan *p, const Node *whole,
                           const Value into[3])
{
    Graph *g = w->g;
    Value dq = NO_VALUE;
    for (int i = 0; i < p->n[w->me] && g->err == OK; i++) {
        const ContextStep *s = &p->list[w->me][i];
        if (s->kind == CONTEXT_MOVE) {
            add_move(w, s);
            continue;
        }
        BlockValues *at = &w->at[s->k.rank];
        const Node *n = add_visit(w, whole, s->k.rank);
        if (!n) break;
        const Value out[] = {n->out[0], n->out[1], n->out[2]};
        dq = sum_of(g, dq, out[0]);
        at->dk = sum_of(g, at->dk, out[1]);
        at->dv = sum_of(g, at->dv, out[2]);
    }
    finish(g, dq, into[0]);
    finish(g, w->at[w->me].dk, into[1]);
    finish(g, w->at[w->me].dv, into[2]);
    return graph_err(g);
}
