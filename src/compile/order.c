/* order.c -- the order of the nodes of a phase.
 *
 * As the graph lists them, each preceded by what it reads of its own phase: so a recomputation
 * stands right before its first reader, and lives no longer than it must. In B, where I and W run
 * together, dW follows right after dX, while both operands are near. */
#include "compile/compile.h"

typedef struct {
    const Graph *g;
    Phase phase;
    int *maker; /* [n_values] */
    bool *done;
    int *list, n;
} Walk;

static bool in_phase(const Node *n, Phase phase)
{
    return n->phase == phase || (phase == PHASE_B && n->phase != PHASE_F);
}

static void visit(Walk *w, int index)
{
    const Node *n = &w->g->node[index];
    if (w->done[index] || !in_phase(n, w->phase)) return;
    w->done[index] = true;
    for (int i = 0; i < n->n_in; i++) {
        const int maker = w->maker[n->in[i]];
        if (maker != NO_NODE) visit(w, maker);
    }
    w->list[w->n++] = index;
}

Err order(const Graph *g, Phase phase, Arena *arena, int **list, int *n)
{
    Walk w = {.g = g, .phase = phase};
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.list));
    const size_t mark = arena_mark(arena);
    TRY(ARENA_NEW(arena, g->n_nodes + 1, &w.done));
    TRY(graph_makers(g, arena, &w.maker));
    for (int i = 0; i < g->n_nodes; i++)
        if (!g->node[i].again) visit(&w, i);
    arena_rewind(arena, mark);
    *list = w.list;
    *n = w.n;
    return OK;
}
