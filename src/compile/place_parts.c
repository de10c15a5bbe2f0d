/* place_parts.c -- parts of a unit that are placed one by one.
 *
 *     x ---- norm q k v attention o --- mid ---- norm gate up act down --- y
 *            part 0                     pinned   part 1
 *
 * Nodes that exchange values whose placement is free are one part, and so are the readers of one
 * pinned value, which may share a resharded copy of it, and the readers of a weight with what makes
 * its gradient. A part has fewer states than the unit: the choices of other parts do not multiply
 * them. */
#include "compile/place.h"

static int root_of(int *up, int i)
{
    while (up[i] != i) i = up[i] = up[up[i]];
    return i;
}

static void join(int *up, int a, int b)
{
    if (a >= 0 && b >= 0) up[root_of(up, a)] = root_of(up, b);
}

/* The parameter values of the graph. [n_params] */
static Err find_params(const Graph *g, Arena *temp, Value **out)
{
    TRY(ARENA_NEW(temp, g->n_params + 1, out));
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_PARAM) (*out)[g->value[v].index] = v;
    return OK;
}

Err place_parts(const PlacedGraph *p, const unsigned *pinned, int axis, Arena *temp, int **part,
                int *n_parts)
{
    const Graph *g = p->g;
    int *up, *reader, *maker;
    Value *param;
    TRY(find_params(g, temp, &param));
    TRY(ARENA_NEW(temp, g->n_nodes + 1, &up));
    TRY(ARENA_NEW(temp, g->n_nodes + 1, part));
    TRY(ARENA_NEW(temp, g->n_values + 1, &reader));
    TRY(graph_makers(g, temp, &maker));
    for (int i = 0; i < g->n_nodes; i++) up[i] = i;
    for (Value v = 0; v < g->n_values; v++) reader[v] = NO_NODE;
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        for (int j = 0; j < n->n_in; j++) {
            const Value v = n->in[j];
            join(up, i, reader[v]);
            if (!(pinned[v] >> axis & 1)) join(up, i, maker[v]);
            reader[v] = i;
        }
        for (int j = 0; j < n->n_out; j++) {
            const ValueInfo *info = &g->value[n->out[j]];
            join(up, i, maker[n->out[j]]); /* an accumulator has several writers */
            if (info->role == ROLE_DPARAM) join(up, i, reader[param[info->index]]);
        }
    }
    *n_parts = 0;
    for (int i = 0; i < g->n_nodes; i++)
        if (root_of(up, i) == i) (*part)[i] = (*n_parts)++;
    for (int i = 0; i < g->n_nodes; i++) (*part)[i] = (*part)[root_of(up, i)];
    return OK;
}
