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
 * micro-batch, with a backward part. */
#include "compile/compile.h"

#include "ir/build.h"

typedef struct {
    Graph *g;
    int64_t rows; /* of the cache */
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
    if (dims.dim[0].slot != SLOT_ROWS || dims.dim[0].from != 0)
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

Err session(Graph *g, int64_t rows)
{
    CacheBuilder c = {.g = g, .rows = rows};
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
    }
    TRY(graph_tidy(g));
    return graph_check(g);
}
