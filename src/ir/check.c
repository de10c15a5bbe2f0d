/* check.c -- the check that a graph is well formed. It runs after every pass, so it names a faulty
 * pass by the graph that the pass left. Each check is a few lines and names the node and the
 * value. */
#include "ir/graph.h"

#include <string.h>

static Err bad(const Graph *g, int node, const char *what, Value v)
{
    const char *op = node == NO_NODE ? "" : op_info(g->node[node].op)->name;
    if (node == NO_NODE)
        return err_fail(ERR_CHECK, "graph %s: value %%%d %s: %s", g->kind, v,
                        v >= 0 && v < g->n_values ? g->value[v].name : "", what);
    return err_fail(ERR_CHECK, "graph %s: node %d, %s, value %%%d %s: %s", g->kind, node, op, v,
                    v >= 0 && v < g->n_values ? g->value[v].name : "", what);
}

/* For every value: the node that makes it, the number of makers, the number of reads. */
typedef struct {
    int *maker, *made, *read;
} UseCounts;

static Err count_uses(const Graph *g, UseCounts *u)
{
    TRY(graph_makers(g, g->arena, &u->maker));
    TRY(ARENA_NEW(g->arena, g->n_values + 1, &u->made));
    TRY(ARENA_NEW(g->arena, g->n_values + 1, &u->read));
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        for (int j = 0; j < n->n_out; j++) u->made[n->out[j]]++;
        for (int j = 0; j < n->n_in; j++) u->read[n->in[j]]++;
    }
    return OK;
}

static Err check_values(const Graph *g)
{
    int seen[N_ROLES] = {0};
    for (Value v = 0; v < g->n_values; v++) {
        const ValueInfo *a = &g->value[v];
        if ((unsigned)a->role >= N_ROLES) return bad(g, NO_NODE, "its role is not one", v);
        const bool once = a->role == ROLE_X || a->role == ROLE_Y || a->role == ROLE_DX ||
                          a->role == ROLE_DY || a->role == ROLE_LOSS || a->role == ROLE_STAT;
        if (once && seen[a->role]++)
            return bad(g, NO_NODE, "a second value of a role that a unit has once", v);
        for (int i = 0; i < a->dims.ndim; i++) {
            const Dim *d = &a->dims.dim[i];
            if (d->cap < 0) return bad(g, NO_NODE, "an extent is negative", v);
            if (d->slot != NO_SLOT && (d->slot < 0 || d->slot >= N_SLOTS))
                return bad(g, NO_NODE, "the slot of a bounded extent does not exist", v);
        }
        for (Value u = 0; u < v && a->name[0]; u++)
            if (strcmp(a->name, g->value[u].name) == 0)
                return bad(g, NO_NODE, "two values have this name", v);
    }
    if (seen[ROLE_Y] && seen[ROLE_LOSS])
        return bad(g, NO_NODE, "a unit hands on a stream or ends in a loss, not both",
                   graph_find(g, ROLE_LOSS));
    return OK;
}

/* A parameter's value covers `span` parameters that are stored back to back: same inner extents,
 * outer ones added. */
static Err check_param(const Graph *g, Value v)
{
    const ValueInfo *a = &g->value[v];
    int64_t outer = 0;
    if (a->index < 0 || a->span < 1 || a->index + a->span > g->n_params)
        return bad(g, NO_NODE, "the unit has no such parameter", v);
    for (int p = a->index; p < a->index + a->span; p++) {
        const ParamInfo *q = &g->param[p];
        bool same = q->ndim == a->dims.ndim;
        for (int i = 1; same && i < q->ndim; i++) same = q->n[i] == a->dims.dim[i].cap;
        if (!same) return bad(g, NO_NODE, "its shape is not the parameter's", v);
        outer += q->n[0];
    }
    if (outer != a->dims.dim[0].cap) return bad(g, NO_NODE, "its shape is not the parameter's", v);
    return OK;
}

/* A parameter has one gradient sum: of two, one would be lost. */
static Err check_sums(const Graph *g, const UseCounts *uses, Value v)
{
    const ValueInfo *a = &g->value[v];
    for (Value u = 0; u < v; u++) {
        const ValueInfo *b = &g->value[u];
        if (b->role != ROLE_DPARAM || !uses->made[u]) continue;
        if (a->index < b->index + b->span && b->index < a->index + a->span)
            return bad(g, NO_NODE, "another value sums the gradient of this parameter too", v);
    }
    return OK;
}

/* A value has one maker, an accumulator may have several, a given value has none. */
static Err check_makers(const Graph *g, const UseCounts *uses)
{
    for (Value v = 0; v < g->n_values; v++) {
        const Role role = g->value[v].role;
        const int made = uses->made[v], read = uses->read[v];
        if (role == ROLE_PARAM || role == ROLE_DPARAM) TRY(check_param(g, v));
        if (role == ROLE_DPARAM && made) TRY(check_sums(g, uses, v));
        if (role_given(role) && made)
            return bad(g, NO_NODE, "it is given from outside, yet a node writes it", v);
        if (made > 1 && !role_accumulates(role)) return bad(g, NO_NODE, "two nodes write it", v);
        if (role_accumulates(role) && read)
            return bad(g, NO_NODE, "it is a sum that outlives the program, yet a node reads it", v);
        if (role == ROLE_LOCAL && read && !made)
            return bad(g, NO_NODE, "it is read, but no node writes it", v);
        if ((role == ROLE_Y || role == ROLE_DX) && !made)
            return bad(g, NO_NODE, "the unit must make it, but no node does", v);
    }
    return OK;
}

static Err check_shapes(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    Dims in[MAX_IN], given[MAX_OUT], out[MAX_OUT];
    const int n_in = n->n_in < MAX_IN ? n->n_in : MAX_IN;
    for (int i = 0; i < n_in; i++) in[i] = g->value[n->in[i]].dims;
    for (int i = 0; i < n->n_out; i++) given[i] = g->value[n->out[i]].dims;
    if (op_infer(n->op, &n->attr, n->n_in, in, given, n->n_out, out) != OK)
        return err_fail(ERR_CHECK, "graph %s: node %d: %s", g->kind, index, err_text());
    for (int i = 0; i < n->n_out; i++) {
        if (out[i].ndim != given[i].ndim)
            return bad(g, index, "it has the wrong number of dims", n->out[i]);
        for (int j = 0; j < out[i].ndim; j++)
            if (!dim_same(out[i].dim[j], given[i].dim[j]))
                return bad(g, index, "its shape is not what the op makes", n->out[i]);
    }
    return OK;
}

/* An operand that the signature marks # has integers, all others have floating-point numbers. */
static Err check_integer(const Graph *g, int index, Value v, bool integer)
{
    if (integer == dtype_is_integer(g->value[v].dtype)) return OK;
    return bad(g, index, integer ? "the op wants integers" : "the op wants floating-point numbers",
               v);
}

/* Only operands that the signature marks % have a type of 8 bits, and they have one. Bodies of
 * further rounds read coded weights as well as others. */
static Err check_fp8(const Graph *g, int index, Value v, bool fp8)
{
    const bool any = op_loops(g->node[index].op) && g->value[v].role == ROLE_PARAM;
    if (any || fp8 == dtype_is_fp8(g->value[v].dtype)) return OK;
    return bad(g, index,
               fp8 ? "the op wants quantized numbers" : "the op wants no quantized numbers", v);
}

static Err check_types(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    const Signature sig = op_signature(n->op);
    for (int i = 0; i < n->n_out; i++)
        if (sig.out[i].wide && g->value[n->out[i]].dtype != dtype_wide(g->dtype))
            return bad(g, index, "statistics and sums have the wide type", n->out[i]);
    const OpClass class = op_info(n->op)->class;
    if ((class == CLASS_VIEW || class == CLASS_ORDER || n->op == OP_pack) && n->op != OP_recv &&
        g->value[n->out[0]].dtype != g->value[n->in[0]].dtype)
        return bad(g, index, "it has another type than what it shows", n->out[0]);
    if (class == CLASS_ORDER || n->op == OP_cast) return OK;
    const bool any = class == CLASS_VIEW || n->op == OP_call || n->op == OP_pack;
    for (int i = 0; i < n->n_in && i < sig.n_in && !any; i++) {
        TRY(check_integer(g, index, n->in[i], sig.in[i].integer));
        TRY(check_fp8(g, index, n->in[i], sig.in[i].fp8));
    }
    for (int i = 0; i < n->n_out && !any; i++) {
        TRY(check_integer(g, index, n->out[i], sig.out[i].integer));
        TRY(check_fp8(g, index, n->out[i], sig.out[i].fp8));
    }
    for (int i = 0; i < n->n_in; i++)
        if (g->value[n->in[i]].space != SPACE_DEVICE)
            return bad(g, index, "it is in host memory; copy it in first", n->in[i]);
    return OK;
}

/* Only sums keep their old content. */
static Err check_keep(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    if (n->op == OP_attention && n->n_in == 5)
        return bad(g, index, "o is carried on without its lse", n->in[4]);
    for (int i = 0; i < n->n_out; i++) {
        const int slot = n->keep[i];
        if (slot < 0 || slot >= N_SLOTS) return bad(g, index, "its slot does not exist", n->out[i]);
        const Role role = g->value[n->out[i]].role;
        const int operand = op_sum_operand(n->op, i);
        const bool sum = operand >= 0 && operand < n->n_in;
        const bool adds = role_accumulates(role) || role == ROLE_MICRO || sum;
        if (slot != SLOT_ZERO && !adds)
            return bad(g, index, "it is no sum, yet its old content is kept", n->out[i]);
        if (sum && slot != SLOT_ONE)
            return bad(g, index, "it adds to an input, yet does not keep it", n->out[i]);
    }
    return OK;
}

/* Values that live across slices are written, or added to, and read by rows. */
static Err check_micro(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    const bool attention = n->op == OP_attention || n->op == OP_attention_dx;
    for (int i = 0; i < n->n_in; i++) {
        const bool may =
            n->op == OP_get_rows || n->op == OP_part || (attention && (i == 1 || i == 2));
        const bool is = g->value[n->in[i]].role == ROLE_MICRO;
        if (is && !may)
            return bad(g, index, "it holds rows of all slices; get those of one", n->in[i]);
        if (!is && n->op == OP_get_rows)
            return bad(g, index, "it does not hold the rows of all slices", n->in[i]);
    }
    for (int i = 0; i < n->n_out; i++) {
        const bool sum = n->op == OP_add_rows || (n->op == OP_attention_dx && i > 0);
        const bool is = g->value[n->out[i]].role == ROLE_MICRO;
        const bool must = n->op == OP_put_rows || n->op == OP_add_rows;
        if (is != must && !(is && sum))
            return bad(
                g, index,
                "rows of all slices are put, or added to by add_rows and attention_dx, alone",
                n->out[i]);
        if (is && n->keep[i] != (sum ? SLOT_BEFORE_LAST : SLOT_ZERO))
            return bad(g, index, "its sum does not begin with the last slice", n->out[i]);
    }
    return OK;
}

/* Values that live across calls are written by rows, and read by attention. */
static Err check_session(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    for (int i = 0; i < n->n_in; i++) {
        const bool may = n->op == OP_attention && (i == 1 || i == 2);
        if (g->value[n->in[i]].role == ROLE_SESSION && !may)
            return bad(g, index, "it holds rows of all calls, which attention alone reads",
                       n->in[i]);
    }
    for (int i = 0; i < n->n_out; i++)
        if ((g->value[n->out[i]].role == ROLE_SESSION) != (n->op == OP_put_rows_at))
            return bad(g, index, "rows of all calls are put there, alone", n->out[i]);
    return OK;
}

static Err check_queue(const Graph *g, const UseCounts *uses, int index)
{
    const Node *n = &g->node[index];
    const Queue want = n->op == OP_copy_out  ? QUEUE_D2H
                       : n->op == OP_copy_in ? QUEUE_H2D
                       : op_transfers(n->op) ? QUEUE_COMM
                                             : QUEUE_COMPUTE;
    if (n->queue != want) return bad(g, index, "the op runs on another queue", n->out[0]);
    if (n->op == OP_copy_out && g->value[n->out[0]].space != SPACE_HOST)
        return bad(g, index, "copied out, it must be in host memory", n->out[0]);
    for (int i = 0; i < n->n_in; i++) {
        const int maker = uses->maker[n->in[i]];
        const bool begun = maker != NO_NODE && op_begins(g->node[maker].op);
        if (begun && n->op != OP_wait) return bad(g, index, "it is read before the wait", n->in[i]);
        if (!begun && n->op == OP_wait)
            return bad(g, index, "there is nothing to wait for", n->in[i]);
    }
    return OK;
}

static Err check_views(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    const int dim = (int)n->attr.part.dim;
    if (op_info(n->op)->class == CLASS_VIEW && n->op != OP_join &&
        g->value[n->out[0]].role != ROLE_LOCAL)
        return bad(g, index, "a view cannot be handed on; copy it first", n->out[0]);
    if (n->op != OP_part && n->op != OP_join) return OK;
    const Dims *out = &g->value[n->out[0]].dims;
    if (dim < 0 || dim >= out->ndim) return bad(g, index, "there is no such dim", n->out[0]);
    if (n->op == OP_part) {
        if (n->attr.part.from < 0 ||
            n->attr.part.from + out->dim[dim].cap > g->value[n->in[0]].dims.dim[dim].cap)
            return bad(g, index, "the part is outside of its whole", n->out[0]);
        return OK;
    }
    int64_t sum = 0;
    for (int i = 0; i < n->n_in; i++) sum += g->value[n->in[i]].dims.dim[dim].cap;
    if (sum != out->dim[dim].cap)
        return bad(g, index, "the parts do not make the whole", n->out[0]);
    return OK;
}

/* F must not depend on I or W; I must not depend on W. */
static Err check_phase(const Graph *g, const UseCounts *uses, int index)
{
    const Node *n = &g->node[index];
    if (!g->phased) return OK;
    if (n->phase > PHASE_W) return bad(g, index, "a node is in F, I or W", n->out[0]);
    if (n->recomputed && n->phase == PHASE_F) return bad(g, index, "recomputed in F", n->out[0]);
    for (int i = 0; i < n->n_in; i++) {
        const int maker = uses->maker[n->in[i]];
        if (maker != NO_NODE && g->node[maker].phase > n->phase)
            return bad(g, index, "it is made in a later phase than it is read", n->in[i]);
    }
    return OK;
}

/* Depth first; a node that is met again while still open depends on itself. */
static Err check_cycles(const Graph *g, const UseCounts *uses, int index, char *state)
{
    if (state[index] == 2) return OK;
    if (state[index] == 1) return bad(g, index, "it depends on itself", g->node[index].out[0]);
    state[index] = 1;
    for (int i = 0; i < g->node[index].n_in; i++) {
        const int maker = uses->maker[g->node[index].in[i]];
        if (maker != NO_NODE) TRY(check_cycles(g, uses, maker, state));
    }
    state[index] = 2;
    return OK;
}

static Err check_node(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    if ((unsigned)n->op >= N_OPS)
        return err_fail(ERR_CHECK, "graph %s: node %d: there is no op %d", g->kind, index,
                        (int)n->op);
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] < 0 || n->in[i] >= g->n_values)
            return bad(g, index, "there is no such value", n->in[i]);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] < 0 || n->out[i] >= g->n_values)
            return bad(g, index, "there is no such value", n->out[i]);
    return OK;
}

static Err check_all(const Graph *g)
{
    UseCounts uses;
    char *state;
    TRY(check_values(g));
    for (int i = 0; i < g->n_nodes; i++) TRY(check_node(g, i));
    TRY(count_uses(g, &uses));
    TRY(check_makers(g, &uses));
    for (int i = 0; i < g->n_nodes; i++) {
        TRY(check_micro(g, i));
        TRY(check_session(g, i));
        TRY(check_shapes(g, i));
        TRY(check_types(g, i));
        TRY(check_keep(g, i));
        TRY(check_queue(g, &uses, i));
        TRY(check_views(g, i));
        TRY(check_phase(g, &uses, i));
    }
    TRY(ARENA_NEW(g->arena, g->n_nodes, &state));
    for (int i = 0; i < g->n_nodes; i++) TRY(check_cycles(g, &uses, i, state));
    return OK;
}

Err graph_check(const Graph *g)
{
    TRY(g->err);
    const size_t mark = arena_mark(g->arena);
    const Err err = check_all(g);
    arena_rewind(g->arena, mark);
    return err;
}
