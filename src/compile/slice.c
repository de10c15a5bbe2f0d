/* slice.c -- a program that runs a slice of a sequence at a time.
 *
 * A query sees keys of its own slice and of those before it. So keys and values of all slices are
 * stored together, as long as the micro-batch needs them. A slice puts its rows there, and
 * attention reads up to its last row. Backward phases start with the last slice: each adds to the
 * gradients of all keys that it saw. Its own rows are then complete, since no earlier slice saw
 * them.
 *
 *   before:  out, lse = attention q k v ranges
 *            d.q, d.k, d.v = attention_dx q k v ranges d.out lse out
 *   after:   k.all = put_rows k
 *            v.all = put_rows v
 *            out, lse = attention q k.all v.all ranges
 *            d.q, d.k.all, d.v.all += attention_dx q k.all v.all ranges d.out lse out
 *            d.k = get_rows d.k.all
 *            d.v = get_rows d.v.all
 *
 *            slice   0    1    2
 *   k.all          |----|---|--|       F of slice 1 reads | - - |
 *   d.k.all        |----|---|--|       I of slice 1 adds  | - - |, and takes  |---|
 *
 * Ranges count rows of the micro-batch, so they do not change. The loss accumulates from slice to
 * slice; gradients of parameters accumulate as from micro-batch to micro-batch. */
#include "compile/compile.h"

/* Sets the extents that follow from rows: the rows of experts, k for each token. */
static Err infer_again(Graph *g)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        Dims in[MAX_IN], given[MAX_OUT], out[MAX_OUT];
        if (n->n_in > MAX_IN) continue; /* a join */
        for (int j = 0; j < n->n_in; j++) in[j] = g->value[n->in[j]].dims;
        for (int j = 0; j < n->n_out; j++) given[j] = g->value[n->out[j]].dims;
        TRY(op_infer(n->op, &n->attr, n->n_in, in, given, n->n_out, out));
        for (int j = 0; j < n->n_out; j++) g->value[n->out[j]].dims = out[j];
    }
    return OK;
}

/* Replaces the row extents of the micro-batch by those of the slice. */
Err slice_rows(Graph *g, int64_t rows, int64_t *all)
{
    *all = 0;
    for (Value v = 0; v < g->n_values; v++)
        for (int i = 0; i < g->value[v].dims.ndim; i++) {
            Dim *d = &g->value[v].dims.dim[i];
            if (d->slot != SLOT_ROWS) continue;
            *all = d->cap;
            d->cap = rows;
        }
    if (rows > *all)
        return err_fail(ERR_CHECK, "graph %s: slices of %lld rows of a micro-batch of %lld",
                        g->kind, (long long)rows, (long long)*all);
    TRY(infer_again(g));
    return graph_check(g);
}

typedef struct {
    Graph *g;
    int64_t rows;   /* of the micro-batch */
    Value n_values; /* before */
    Value *whole;   /* [n_values]: of keys and values, all slices; NO_VALUE: none */
} Slicer;

/* A value with the rows of all slices; the live rows are those that the slice may see. */
static Value new_whole(Slicer *s, Value v, DType dtype)
{
    Graph *g = s->g;
    const ValueInfo part = g->value[v];
    Dims dims = part.dims;
    dims.dim[0] = dim_rows(s->rows, SLOT_SEEN);
    const Value all = graph_value(g, ROLE_MICRO, "", dtype, dims);
    if (all == NO_VALUE) return all;
    g->value[all].layout = part.layout;
    return part.name[0] ? graph_name(g, all, "%s.all", part.name) : all;
}

/* Writes keys or values of this slice into the rows of all slices. */
static Err put(Slicer *s, Value v)
{
    Graph *g = s->g;
    const Dim rows = g->value[v].dims.dim[0];
    if (s->whole[v] != NO_VALUE) return OK;
    if (rows.slot != SLOT_ROWS || rows.from != 0 || rows.span)
        return err_fail(
            ERR_CHECK, "graph %s: value %%%d %s, keys or values of a slice, has not all rows of it",
            g->kind, v, g->value[v].name);
    const Value all = new_whole(s, v, g->value[v].dtype);
    TRY(graph_err(g));
    const Dims dims = g->value[all].dims;
    Node *n = graph_node(g, OP_put_rows, NULL, 1, &v, &dims, 1);
    if (!n) return graph_err(g);
    n->out[0] = all;
    s->whole[v] = all;
    return OK;
}

/* Reads the slice's rows of a gradient, to which it and later slices have added. */
static Err get(Slicer *s, int index, int output)
{
    Graph *g = s->g;
    const Value part = g->node[index].out[output];
    /* k and v are operands 1 and 2, as d.k and d.v are outputs. */
    const Value key = g->node[index].in[output];
    const Dims dims = g->value[key].dims;
    const Value all = new_whole(s, part, dtype_wide(g->dtype)); /* a sum */
    TRY(graph_err(g));
    Node *n = graph_node(g, OP_get_rows, NULL, 1, &all, &dims, 1);
    if (!n) return graph_err(g);
    n->out[0] = part; /* readers and name stay */
    g->node[index].out[output] = all;
    g->node[index].keep[output] = SLOT_BEFORE_LAST;
    return OK;
}

static Err slice_node(Slicer *s, int index)
{
    Graph *g = s->g;
    const OpId op = g->node[index].op;
    if (op != OP_attention && op != OP_attention_dx) return OK;
    for (int k = 1; k <= 2; k++) {
        TRY(put(s, g->node[index].in[k]));
        if (op == OP_attention_dx) TRY(get(s, index, k));
    }
    for (int k = 1; k <= 2; k++) g->node[index].in[k] = s->whole[g->node[index].in[k]];
    return OK;
}

/* Sums of a micro-batch go on from slice to slice: of F from the first on, of backward from the
 * last. */
static void continue_sums(Graph *g, Node *n)
{
    for (int j = 0; j < n->n_out; j++) {
        if (g->value[n->out[j]].role == ROLE_LOSS && n->keep[j] == SLOT_ZERO)
            n->keep[j] = SLOT_AFTER_FIRST;
        if (g->value[n->out[j]].role == ROLE_STAT) n->keep[j] = SLOT_BEFORE_LAST;
    }
}

Err slice(Graph *g, int64_t all, bool has_keys)
{
    Slicer s = {.g = g, .rows = all, .n_values = g->n_values};
    const int n_nodes = g->n_nodes;
    TRY(ARENA_NEW(g->arena, s.n_values + 1, &s.whole));
    for (Value v = 0; v < s.n_values; v++) s.whole[v] = NO_VALUE;
    for (int i = 0; i < n_nodes; i++) {
        if (!has_keys) TRY(slice_node(&s, i));
        continue_sums(g, &g->node[i]);
    }
    TRY(graph_tidy(g));
    return graph_check(g);
}
