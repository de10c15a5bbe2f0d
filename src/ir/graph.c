/* graph.c -- construction of a graph, and queries. */
#include "ir/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void graph_init(Graph *g, const char *kind, DType dtype, Arena *arena)
{
    *g = (Graph){.arena = arena, .kind = kind, .dtype = dtype};
}

Err graph_err(const Graph *g) { return g->err; }

/* Grows the table for one more element; a full table moves to twice the space. */
static Err grow(Graph *g, void *table, int n, int *cap, size_t element)
{
    void *old, *bigger;
    if (n < *cap) return OK;
    memcpy(&old, table, sizeof old);
    const int more = *cap ? 2 * *cap : 64;
    TRY(arena_new(g->arena, (size_t)more, element, &bigger));
    if (n) memcpy(bigger, old, (size_t)n * element);
    memcpy(table, &bigger, sizeof bigger);
    *cap = more;
    return OK;
}

/* Marks the graph as failed; a failed builder returns this. */
static Value failed(Graph *g, Err err)
{
    if (g->err == OK) g->err = err;
    return NO_VALUE;
}

Value graph_value(Graph *g, Role role, const char *name, DType dtype, Dims dims)
{
    if (g->err != OK) return NO_VALUE;
    Err err = grow(g, &g->value, g->n_values, &g->cap_values, sizeof *g->value);
    if (err != OK) return failed(g, err);
    ValueInfo *v = &g->value[g->n_values];
    *v = (ValueInfo){.name = "", .dtype = dtype, .role = role, .dims = dims};
    if (name && *name && (err = arena_string(g->arena, name, &v->name)) != OK)
        return failed(g, err);
    return g->n_values++;
}

Value graph_param(Graph *g, ParamInfo info)
{
    if (g->err != OK) return NO_VALUE;
    Err err = grow(g, &g->param, g->n_params, &g->cap_params, sizeof *g->param);
    if (err == OK) err = arena_string(g->arena, info.name, &info.name);
    if (err != OK) return failed(g, err);
    g->param[g->n_params] = info;
    Dims dims = {.ndim = info.ndim};
    for (int i = 0; i < info.ndim; i++) dims.dim[i] = dim_of(info.n[i]);
    const DType dtype = info.rule != PARAM_BY_OPTIMIZER ? dtype_wide(g->dtype) : g->dtype;
    const Value v = graph_value(g, ROLE_PARAM, info.name, dtype, dims);
    if (v == NO_VALUE) return v;
    g->value[v].index = g->n_params++;
    g->value[v].span = 1;
    return v;
}

Value graph_scale(Graph *g, Value param, Dims dims)
{
    char name[128];
    if (g->err != OK) return NO_VALUE;
    const ValueInfo of = g->value[param];
    snprintf(name, sizeof name, "%.110s.scale", g->param[of.index].name);
    const Value v = graph_value(g, ROLE_SCALE, name, dtype_wide(g->dtype), dims);
    if (v == NO_VALUE) return v;
    g->value[v].index = of.index;
    g->value[v].span = of.span;
    return v;
}

/* The type of an output. Integers are i32, statistics and sums are wide, views have the type of
 * their input; quantized values have that of an attribute, and what is made of them that of the
 * graph; all others have the type of the first floating input. */
static DType output_dtype(const Graph *g, const Node *n, const Operand *o)
{
    const OpClass class = op_info(n->op)->class;
    if (o->integer) return I32;
    if (o->wide) return dtype_wide(g->dtype);
    if (o->fp8) return n->attr.kernel.quantize.type;
    if (class == CLASS_VIEW || class == CLASS_ORDER) return g->value[n->in[0]].dtype;
    for (int i = 0; i < n->n_in; i++) {
        const DType t = g->value[n->in[i]].dtype;
        if (!dtype_is_integer(t)) return dtype_is_fp8(t) ? g->dtype : t;
    }
    return g->dtype;
}

static Err infer_outputs(Graph *g, Node *n, const Dims *given, Dims *out)
{
    Dims in[MAX_IN];
    const int n_in = n->n_in < MAX_IN ? n->n_in : MAX_IN;
    for (int i = 0; i < n_in; i++) in[i] = g->value[n->in[i]].dims;
    return op_infer(n->op, &n->attr, n->n_in, in, given, n->n_out, out);
}

Node *graph_node(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in,
                 const Dims *given, int n_out)
{
    Dims dims[MAX_OUT];
    Err err = g->err;
    if (err == OK) err = grow(g, &g->node, g->n_nodes, &g->cap_nodes, sizeof *g->node);
    if (err != OK) return failed(g, err), NULL;
    Node *n = &g->node[g->n_nodes];
    *n = (Node){.op = op, .n_in = n_in, .n_out = n_out, .queue = QUEUE_COMPUTE, .chunk = g->chunk};
    if (attr) n->attr = *attr;
    if ((err = ARENA_NEW(g->arena, n_in, &n->in)) != OK) return failed(g, err), NULL;
    if (n_in > 0) memcpy(n->in, in, (size_t)n_in * sizeof *in);
    if ((err = infer_outputs(g, n, given, dims)) != OK) return failed(g, err), NULL;
    const Signature sig = op_signature(op);
    for (int i = 0; i < n_out; i++)
        n->out[i] = graph_value(g, ROLE_LOCAL, "", output_dtype(g, n, &sig.out[i]), dims[i]);
    if (g->err != OK) return NULL;
    g->n_nodes++;
    return n;
}

Err graph_append(Graph *g, const Node *node, Node **out)
{
    TRY(g->err);
    TRY(grow(g, &g->node, g->n_nodes, &g->cap_nodes, sizeof *g->node));
    g->node[g->n_nodes] = *node;
    *out = &g->node[g->n_nodes++];
    return OK;
}

int32_t graph_move(Graph *g, const TransferPart *move)
{
    Err err = g->err;
    if (err == OK) err = grow(g, &g->move, g->n_moves, &g->cap_moves, sizeof *g->move);
    if (err != OK) return failed(g, err);
    g->move[g->n_moves] = *move;
    return g->n_moves++;
}

int32_t graph_transfers(const Graph *g)
{
    int32_t n = 0;
    for (int i = 0; i < g->n_moves; i++) n += g->move[i].group.n > 0;
    return n;
}

Value graph_name(Graph *g, Value v, const char *format, ...)
{
    char text[128];
    va_list args;
    if (g->err != OK || v == NO_VALUE) return v;
    va_start(args, format);
    const int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || length >= (int)sizeof text)
        return failed(g, err_fail(ERR_CHECK, "unit %s: the name %s... has %d bytes; the most is %d",
                                  g->kind, text, length, (int)sizeof text - 1));
    const Err err = arena_string(g->arena, text, &g->value[v].name);
    return err == OK ? v : failed(g, err);
}

Err graph_clone(const Graph *g, Arena *arena, Graph *out)
{
    Graph c = *g;
    c.arena = arena;
    c.cap_values = g->n_values;
    c.cap_nodes = g->n_nodes;
    c.cap_params = g->n_params;
    c.cap_moves = g->n_moves; /* the table only grows, and growing copies it */
    TRY(ARENA_NEW(arena, g->n_values, &c.value));
    TRY(ARENA_NEW(arena, g->n_nodes, &c.node));
    TRY(ARENA_NEW(arena, g->n_params, &c.param));
    if (g->n_values) memcpy(c.value, g->value, (size_t)g->n_values * sizeof *g->value);
    if (g->n_params) memcpy(c.param, g->param, (size_t)g->n_params * sizeof *g->param);
    for (int i = 0; i < g->n_nodes; i++) {
        c.node[i] = g->node[i];
        TRY(ARENA_NEW(arena, g->node[i].n_in, &c.node[i].in));
        memcpy(c.node[i].in, g->node[i].in, (size_t)g->node[i].n_in * sizeof(Value));
    }
    *out = c;
    return OK;
}

Value graph_find(const Graph *g, Role role)
{
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == role) return v;
    return NO_VALUE;
}

int graph_maker(const Graph *g, Value v)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_out; j++)
            if (g->node[i].out[j] == v) return i;
    return NO_NODE;
}

Err graph_makers(const Graph *g, Arena *arena, int **out)
{
    int *maker;
    TRY(ARENA_NEW(arena, g->n_values + 1, &maker));
    for (Value v = 0; v < g->n_values; v++) maker[v] = NO_NODE;
    for (int i = g->n_nodes - 1; i >= 0; i--) /* backwards: the first one stays */
        for (int j = 0; j < g->node[i].n_out; j++) maker[g->node[i].out[j]] = i;
    *out = maker;
    return OK;
}

int graph_readers(const Graph *g, Value v)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_in; j++) n += g->node[i].in[j] == v;
    return n;
}

Err graph_order_moves(Graph *g)
{
    const size_t mark = arena_mark(g->arena);
    TransferPart *move;
    bool *taken; /* [n_moves]: by a send or a receive */
    int to = 0;
    TRY(ARENA_NEW(g->arena, g->n_moves + 1, &move));
    TRY(ARENA_NEW(g->arena, g->n_moves + 1, &taken));
    if (g->n_moves > 0) memcpy(move, g->move, (size_t)g->n_moves * sizeof *move);
    for (int i = 0; i < g->n_nodes; i++)
        if (op_pairs(g->node[i].op)) taken[g->node[i].attr.move.index] = true;
    for (int i = 0; i < g->n_nodes; i++) {
        if (!op_pairs(g->node[i].op)) continue;
        while (!taken[to]) to++;
        g->move[to] = move[g->node[i].attr.move.index];
        g->node[i].attr.move.index = to++;
    }
    arena_rewind(g->arena, mark);
    return OK;
}

typedef struct {
    const Graph *g;
    const int *maker; /* [n_values] */
    bool *done;       /* [n_nodes] */
    Node *sorted;
    int n;
} TopoSort;

static void visit(TopoSort *t, int index)
{
    const Node *n = &t->g->node[index];
    if (t->done[index]) return;
    t->done[index] = true;
    for (int i = 0; i < n->n_in; i++)
        if (t->maker[n->in[i]] != NO_NODE) visit(t, t->maker[n->in[i]]);
    t->sorted[t->n++] = *n;
}

bool graph_is_moved(const Graph *g, Value v)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const bool view = op_info(n->op)->class == CLASS_VIEW;
        const bool moves = op_transfers(n->op) || n->op == OP_pack;
        for (int j = 0; j < n->n_in && n->n_out && (view || moves); j++)
            if (n->in[j] == v && !op_only_orders(n->op, j) &&
                (moves || graph_is_moved(g, n->out[0])))
                return true;
    }
    return false;
}

Err graph_tidy(Graph *g)
{
    TopoSort t = {.g = g};
    int *maker;
    TRY(ARENA_NEW(g->arena, g->n_nodes + 1, &t.sorted));
    const size_t mark = arena_mark(g->arena);
    TRY(ARENA_NEW(g->arena, g->n_nodes + 1, &t.done));
    TRY(graph_makers(g, g->arena, &maker));
    t.maker = maker;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i].n_out) visit(&t, i);
    arena_rewind(g->arena, mark);
    g->node = t.sorted;
    g->cap_nodes = g->n_nodes + 1;
    g->n_nodes = t.n;
    return OK;
}
