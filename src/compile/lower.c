/* lower.c -- from a graph to a program. Every value gets a region and an offset; every node that
 * moves bytes becomes an instruction, in the order of its phase. Tensors have the numbers of the
 * values. */
#include "compile/lower.h"

#include <string.h>

static Err lower_orders(LowerContext *l)
{
    for (int p = 0; p < N_PHASES; p++) {
        TRY(order(l->g, (Phase)p, l->arena, &l->orders.list[p], &l->orders.n[p]));
        TRY(lower_pairs(l, (Phase)p));
        TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &l->orders.at[p]));
        for (int i = 0; i < l->g->n_nodes; i++) l->orders.at[p][i] = -1;
        for (int i = 0; i < l->orders.n[p]; i++) {
            for (int k = l->orders.list[p][i]; k != NO_NODE; k = l->orders.with[p][k])
                l->orders.at[p][k] = i;
        }
    }
    return OK;
}

/* Rows that are put or got are read and written once, rows that are added read once more; the other
 * rows of the whole are not touched. */
static size_t moved_rows(const LowerContext *l, const Node *n)
{
    return (n->op == OP_add_rows ? 3 : 2) *
           tensor_bytes(&l->tensor[n->op == OP_get_rows ? n->out[0] : n->in[0]]);
}

static void add_outputs(const LowerContext *l, const Node *n, int first, Instr *in)
{
    for (int i = first; i < n->n_out; i++) {
        const size_t bytes = tensor_bytes(&l->tensor[n->out[i]]);
        in->keep[in->n_out] = n->keep[i];
        in->out[in->n_out++] = n->out[i];
        in->bytes += n->keep[i] != SLOT_ZERO ? 2 * bytes : bytes; /* read too */
    }
}

static Flops flops_of(const Graph *g, const Node *n)
{
    Dims dims[MAX_IN], out[MAX_OUT];
    for (int i = 0; i < n->n_in; i++) dims[i] = g->value[n->in[i]].dims;
    for (int i = 0; i < n->n_out; i++) out[i] = g->value[n->out[i]].dims;
    return op_flops(n->op, &n->attr, n->n_in, dims, n->n_out, out);
}

static Instr make_instr(const LowerContext *l, const Node *n, Phase phase)
{
    Instr in = {.op = n->op,
                .queue = n->queue,
                .phase = phase,
                .recomputed = n->recomputed,
                .attr = n->attr};
    for (int i = 0; i < n->n_in; i++) {
        if (op_is_sum(n->op, i)) continue; /* the output's own bytes */
        if (op_only_orders(n->op, i)) continue;
        in.in[in.n_in++] = n->in[i];
        in.bytes += tensor_bytes(&l->tensor[n->in[i]]);
    }
    add_outputs(l, n, 0, &in);
    if (n->op == OP_put_rows || n->op == OP_get_rows || n->op == OP_add_rows ||
        n->op == OP_put_rows_at)
        in.bytes = moved_rows(l, n);
    if (op_loops(n->op)) in.bytes = 0; /* the instructions of the body have those of a round */
    const Flops flops = flops_of(l->g, n);
    in.flops = flops.all;
    in.heavy_flops = flops.heavy;
    return in;
}

/* Adds the outputs of a node that joins the instruction. */
static void add_pair(const LowerContext *l, const Node *with, Instr *in)
{
    in->op = lower_pair_op(in->op, with->op);
    add_outputs(l, with, lower_is_spare(with, 0), in);
    if (op_loops(in->op)) in->bytes = 0;
    in->flops += flops_of(l->g, with).all; /* no op that joins is heavy */
}

static Err lower_instructions(LowerContext *l)
{
    Instr *instr;
    int n = 0, room = 0;
    for (int p = 0; p < N_PHASES; p++) room += l->orders.n[p];
    TRY(ARENA_NEW(l->arena, room + 1, &instr));
    for (int p = 0; p < N_PHASES; p++) {
        l->p->first[p] = n;
        for (int i = 0; i < l->orders.n[p]; i++) {
            const int index = l->orders.list[p][i], *with = l->orders.with[p];
            const Node *node = &l->g->node[index];
            if (op_info(node->op)->class == CLASS_VIEW) continue;
            instr[n] = make_instr(l, node, (Phase)p);
            for (int k = with[index]; k != NO_NODE; k = with[k])
                add_pair(l, &l->g->node[k], &instr[n]);
            n++;
        }
    }
    l->p->first[N_PHASES] = n;
    l->p->instr = instr;
    l->p->n_instr = n;
    return OK;
}

static Err lower_ports(LowerContext *l)
{
    PortIn *in;
    PortOut *out;
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &in));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &out));
    for (Value v = 0; v < l->g->n_values; v++) {
        const ValueInfo *info = &l->g->value[v];
        const int maker = l->maker[v];
        if (info->role == ROLE_PARAM && graph_readers(l->g, v))
            in[l->p->n_in++] = (PortIn){info->index, info->span, v};
        if (info->role == ROLE_DPARAM && maker != NO_NODE)
            out[l->p->n_out++] = (PortOut){info->index, info->span, v,
                                           (uint8_t)l->g->node[maker].phase, info->layout.partial};
    }
    l->p->in = in;
    l->p->out = out;
    return OK;
}

/* Records the phases that read the streams and their gradients: the neighbors keep them that
 * long. */
static void lower_streams(LowerContext *l)
{
    l->p->dx_made = N_PHASES;
    for (int i = 0; i < l->g->n_nodes; i++) {
        const Node *n = &l->g->node[i];
        for (int j = 0; j < n->n_in; j++) {
            const Role role = l->g->value[l->bytes[n->in[j]].root].role;
            const uint8_t bit = (uint8_t)(1u << n->phase);
            if (role == ROLE_X) l->p->x_read |= bit;
            if (role == ROLE_Y) l->p->y_read |= bit;
            if (role == ROLE_DX) l->p->dx_read |= bit;
            if (role == ROLE_DY) l->p->dy_read |= bit;
        }
        for (int j = 0; j < n->n_out; j++)
            if (l->g->value[l->bytes[n->out[j]].root].role == ROLE_DX)
                l->p->dx_made = (uint8_t)n->phase;
    }
}

Err lower(const Graph *g, Arena *arena, Program *out)
{
    Program p = {.kind = g->kind, .dtype = g->dtype, .n_tensors = g->n_values};
    LowerContext l = {.g = g, .arena = arena, .p = &p};
    if (g->n_params > MAX_PORTS)
        return err_fail(ERR_CONFIG, "unit %s has %d parameters, at most %d are possible", g->kind,
                        g->n_params, MAX_PORTS);
    TRY(graph_makers(g, arena, &l.maker));
    TRY(lower_orders(&l));
    TRY(lower_bytes(&l, &l.bytes));
    TRY(lower_memory(&l));
    TRY(lower_instructions(&l));
    TRY(lower_ports(&l));
    lower_streams(&l);
    p.tensor = l.tensor;
    p.move = g->move;
    p.body = g->body;
    p.n_bodies = g->n_bodies;
    const Value loss = graph_find(g, ROLE_LOSS);
    if (loss != NO_VALUE) p.loss_partial = g->value[loss].layout.partial;
    const Value stat = graph_find(g, ROLE_STAT);
    if (stat != NO_VALUE) p.stat_partial = g->value[stat].layout.partial;
    if (stat != NO_VALUE) p.stats = dims_count(&g->value[stat].dims);
    TRY(program_check(&p));
    *out = p;
    return OK;
}
