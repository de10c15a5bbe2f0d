/* session.c -- a program that is called repeatedly on growing sequences: a KV cache.
 *
 * A query sees keys of its own call and of all calls before it. So keys and values of all calls are
 * stored together, for the life of the session. A call writes its rows at the indices of an input,
 * and attention reads the whole cache.
 *
 *   before:  out, lse = attention q k v ranges
 *   after:   k.all = put_rows_at k places
 *            v.all = put_rows_at v places
 *            out, lse = attention q k.all v.all ranges
 *
 *   k.all    |sequence 0      |sequence 1      |      row = sequence * context + position
 *             ^^^^^^^ -        ^^ -                   seen before; put by this call
 *
 * The ranges of a query are in rows of the cache. Causal order, a window and the rows of each
 * sequence are therefore numbers of the call. slice.c does the same for the slices of a
 * micro-batch, with a backward part.
 *
 * The ranks along cp share one cache: position p of a sequence is a row of rank p % cp, and stays
 * there. Every rank computes the few queries of a call over its own keys; then all ranks merge all
 * parts, in rank order, so that they have the same bits. Parts have the wide type.
 *
 *   cp = 2:  o0, lse0 = attention q k.all v.all ranges      places and ranges are this rank's
 *            o.each   = all_gather o0;  lse.each = all_gather lse0
 *            out, lse = attention_merge (part 0 of o.each, lse.each) (part 1 of both) */
#include "compile/compile.h"

#include "ir/build.h"

typedef struct {
    Graph *g;
    int64_t rows; /* of the cache */
    const Mesh *mesh;
    int rank;
    Value places;
    Value *whole; /* [values before]: the cache of keys or values; NO_VALUE: none yet */
} CacheBuilder;

/* Writes the rows of this call into the cache. */
static Err put(CacheBuilder *c, Value v)
{
    Graph *g = c->g;
    const ValueInfo part = g->value[v];
    Dims dims = part.dims;
    if (c->whole[v] != NO_VALUE) return OK;
    if (dims.dim[0].slot != SLOT_ROWS || dims.dim[0].from != 0 || dims.dim[0].span)
        return err_fail(ERR_CHECK,
                        "graph %s: value %%%d %s, keys or values of a call, has not all rows of it",
                        g->kind, v, part.name);
    dims.dim[0] = dim_of(c->rows);
    const Value all = graph_value(g, ROLE_SESSION, "", part.dtype, dims);
    TRY(graph_err(g));
    g->value[all].layout = part.layout;
    if (part.name[0]) graph_name(g, all, "%s.all", part.name);
    const Value in[] = {v, c->places};
    Node *n = graph_node(g, OP_put_rows_at, NULL, 2, in, &dims, 1);
    if (!n) return graph_err(g);
    n->out[0] = all;
    c->whole[v] = all;
    return OK;
}

/* The values of all ranks along cp, one after another along dim 0. */
static Value gather(const CacheBuilder *c, Value v, unsigned axes)
{
    Graph *g = c->g;
    if (g->err != OK) return NO_VALUE;
    TransferPart move = {.number = graph_transfers(g), .axes = axes};
    const Err err = mesh_group(c->mesh, VIEW_DENSE, axes, c->rank, g->arena, &move.group);
    if (err != OK) g->err = err;
    Dims dims = g->value[v].dims;
    dims.dim[0] = dim_of(dims.dim[0].cap * move.group.n);
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    Node *n = g->err == OK ? graph_node(g, OP_all_gather, &attr, 1, &v, &dims, 1) : NULL;
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    const Value each = n->out[0];
    g->value[each].dtype = g->value[v].dtype;
    return wait_for(g, each);
}

/* Merges `parts` pairs of (o, lse) into the outputs of the attention that made one of them. */
static Err merge_parts(CacheBuilder *c, const Value out[2], const Value each[2], int parts)
{
    Graph *g = c->g;
    const Dim rows = g->value[out[0]].dims.dim[0];
    Value in[4] = {part(g, each[0], 0, 0, rows), part(g, each[1], 0, 0, rows)};
    for (int i = 1; i < parts; i++) {
        in[2] = part(g, each[0], 0, i * rows.cap, rows);
        in[3] = part(g, each[1], 0, i * rows.cap, rows);
        Node *n = g->err == OK ? graph_node(g, OP_attention_merge, NULL, 4, in, NULL, 2) : NULL;
        if (!n) return graph_err(g);
        for (int k = 0; k < 2 && i == parts - 1; k++) n->out[k] = out[k];
        in[0] = n->out[0], in[1] = n->out[1];
        if (i < parts - 1) g->value[in[0]].dtype = dtype_wide(g->dtype);
    }
    return OK;
}

/* Makes attention `index` one over the keys of this rank, and merges it with those of the other
 * ranks along cp. */
static Err merge_ranks(CacheBuilder *c, int index)
{
    Graph *g = c->g;
    const unsigned cp = mesh_axes(c->mesh, VIEW_DENSE, "cp");
    const int parts = mesh_parts(c->mesh, VIEW_DENSE, cp);
    const Value out[2] = {g->node[index].out[0], g->node[index].out[1]};
    Value each[2];
    if (parts == 1) return OK;
    for (int k = 0; k < 2; k++) {
        const Value own =
            graph_value(g, ROLE_LOCAL, "", dtype_wide(g->dtype), g->value[out[k]].dims);
        TRY(graph_err(g));
        g->node[index].out[k] = own;
        each[k] = gather(c, own, cp);
    }
    return merge_parts(c, out, each, parts);
}

Err session(Graph *g, const CompileOptions *o)
{
    CacheBuilder c = {.g = g, .rows = o->session_rows, .mesh = o->mesh, .rank = o->rank};
    const int n_nodes = g->n_nodes, n_values = g->n_values;
    TRY(ARENA_NEW(g->arena, n_values + 1, &c.whole));
    for (Value v = 0; v < n_values; v++) c.whole[v] = NO_VALUE;
    for (int i = 0; i < n_nodes; i++) {
        if (g->node[i].op != OP_attention) continue;
        const Dim live = g->value[g->node[i].in[0]].dims.dim[0];
        c.places = input(g, INPUT_PLACES, live);
        for (int k = 1; k <= 2; k++) {
            TRY(put(&c, g->node[i].in[k]));
            g->node[i].in[k] = c.whole[g->node[i].in[k]];
        }
        TRY(merge_ranks(&c, i));
    }
    TRY(graph_tidy(g));
    return graph_check(g);
}
