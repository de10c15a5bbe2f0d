/* phases.c -- the phase of each node, by reachability.
 *
 *   F   does not depend on dy                 (all of a head: its upstream gradient is 1)
 *   I   depends on dy, and dx depends on it
 *   W   depends on dy, and dx does not depend on it: gradients of parameters
 *
 * A recomputed node does not depend on dy either, but runs where it is read: in I if a node of I
 * reads it, else in W. */
#include "compile/compile.h"

#include <string.h>

/* Sets mark[] for every value that depends on a marked value. */
static void mark_readers(const Graph *g, bool *mark)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < g->n_nodes; i++) {
            const Node *n = &g->node[i];
            bool hit = false;
            for (int j = 0; j < n->n_in; j++) hit = hit || mark[n->in[j]];
            for (int j = 0; j < n->n_out && hit; j++) {
                more = more || !mark[n->out[j]];
                mark[n->out[j]] = true;
            }
        }
    }
}

/* Sets mark[] for every value that a marked value depends on. Readers mostly follow their makers,
 * so one backward walk is mostly enough. */
static void mark_makers(const Graph *g, bool *mark)
{
    for (bool more = true; more;) {
        more = false;
        for (int i = g->n_nodes - 1; i >= 0; i--) {
            const Node *n = &g->node[i];
            bool hit = false;
            for (int j = 0; j < n->n_out; j++) hit = hit || mark[n->out[j]];
            for (int j = 0; j < n->n_in && hit; j++) {
                more = more || !mark[n->in[j]];
                mark[n->in[j]] = true;
            }
        }
    }
}

static bool any_out(const Node *n, const bool *mark)
{
    bool hit = false;
    for (int j = 0; j < n->n_out; j++) hit = hit || mark[n->out[j]];
    return hit;
}

Err phases(Graph *g)
{
    bool *after_dy, *before_dx;
    const size_t before = arena_mark(g->arena);
    TRY(ARENA_NEW(g->arena, g->n_values, &after_dy));
    TRY(ARENA_NEW(g->arena, g->n_values, &before_dx));
    const Value dy = graph_find(g, ROLE_DY), dx = graph_find(g, ROLE_DX);
    if (dy != NO_VALUE) after_dy[dy] = true;
    if (dx != NO_VALUE) before_dx[dx] = true;
    mark_readers(g, after_dy);
    mark_makers(g, before_dx);
    for (int i = 0; i < g->n_nodes; i++) {
        Node *n = &g->node[i];
        const bool backward =
            any_out(n, after_dy) || n->recomputed || n->op == OP_mark_amax; /* a sum of W */
        n->phase = !backward ? PHASE_F : any_out(n, before_dx) ? PHASE_I : PHASE_W;
    }
    arena_rewind(g->arena, before);
    g->phased = true;
    return graph_check(g);
}
