/* place.c -- the placement of a unit on the mesh, forward and backward together, and its graph for
 * one rank.
 *
 *   before:  %7 = linear %5 %w        global shapes; only the strategy's pins have layouts
 *   after:   %8 = all_gather %5 on comm;  %9 = wait %8;  %7 = linear %9 %w      shapes of this rank
 *
 * Per axis: pins first, then the rows with the fewest bytes between pins (place_choose.c). If a
 * value is made in one layout and read in another, a transfer is inserted (place_reshard.c). An
 * axis of one rank leaves nothing to choose, so on one rank nothing is inserted and shapes stay
 * as they are. Data-parallel ranks have micro-batches of their own, so dp does not appear in a
 * unit. */
#include "compile/place.h"

#include <string.h>

/* The axes over which a unit's values can be sharded. */
static unsigned unit_axes(const Mesh *m)
{
    const unsigned others = mesh_axes(m, VIEW_DENSE, "pp") | mesh_axes(m, VIEW_DENSE, "dp");
    unsigned axes = 0;
    for (int i = 0; i < m->view[VIEW_DENSE].n_axes; i++)
        if (m->view[VIEW_DENSE].size[i] > 1) axes |= 1u << i;
    return axes & ~others;
}

/* The first node that needs dy, or the number of nodes. */
static int first_backward(const Graph *g)
{
    int first = g->n_nodes;
    const Value dy = graph_find(g, ROLE_DY);
    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int j = 0; j < g->node[i].n_in; j++)
            if (g->node[i].in[j] == dy) first = i; /* other nodes that need it come later */
    return first;
}

static Shape shape_of(const Dims *d)
{
    Shape s = {.ndim = d->ndim};
    for (int i = 0; i < d->ndim; i++) s.n[i] = d->dim[i].cap;
    return s;
}

static Err open_placed(PlacedGraph *p, Arena *temp)
{
    const Graph *g = p->g;
    p->n_values = g->n_values;
    p->n_nodes = g->n_nodes;
    TRY(ARENA_NEW(temp, g->n_nodes + 1, &p->want));
    TRY(ARENA_NEW(temp, g->n_values + 1, &p->made));
    TRY(ARENA_NEW(temp, g->n_values + 1, &p->max_axes));
    TRY(ARENA_NEW(temp, g->n_values + 1, &p->shape));
    for (Value v = 0; v < g->n_values; v++) {
        p->shape[v] = shape_of(&g->value[v].dims);
        p->made[v] = layout_replicate(VIEW_DENSE);
        if (role_given(g->value[v].role)) p->made[v] = p->pin[v];
    }
    for (int i = 0; i < g->n_nodes; i++) {
        TRY(ARENA_NEW(temp, g->node[i].n_in + 1, &p->want[i]));
        for (int j = 0; j < g->node[i].n_in; j++) p->want[i][j] = layout_replicate(VIEW_DENSE);
    }
    return OK;
}

/* Adds the choices of one axis to the layouts. */
static void add_axis(PlacedGraph *p, const PlaceContext *axis, const RowChoice *choice)
{
    const unsigned bit = 1u << axis->axis;
    for (int i = 0; i < p->n_nodes; i++) {
        const Node *n = &p->g->node[i];
        for (int j = 0; j < n->n_in; j++)
            placement_to_layout(&axis->placements, choice[i].in[j], bit, &p->want[i][j]);
        for (int j = 0; j < n->n_out; j++) {
            const PlacementId id = choice[i].out[j];
            /* The first writer of an accumulator decides. */
            const bool first = graph_maker(p->g, n->out[j]) == i;
            if (first) placement_to_layout(&axis->placements, id, bit, &p->made[n->out[j]]);
            if (axis->placements.list[id].kind == PLACEMENT_MAX)
                p->max_axes[n->out[j]] |= (uint8_t)bit;
        }
    }
}

static Err choose_axis(PlacedGraph *p, const bool *pinned, int axis, const CompileOptions *o,
                       Arena *temp)
{
    Graph *g = p->g;
    RowChoice *choice;
    PlaceContext *a;
    TRY(ARENA_NEW(temp, 1, &a));
    *a = (PlaceContext){
        .g = g, .mesh = p->mesh, .arena = temp, .axis = axis, .regather = !o->keep_gathered};
    a->placements =
        (PlacementTable){.arena = g->arena, .parts = p->mesh->view[VIEW_DENSE].size[axis]};
    a->n_forward = first_backward(g);
    TRY(ARENA_NEW(temp, g->n_values + 1, &a->pin));
    TRY(ARENA_NEW(temp, g->n_nodes + 1, &choice));
    PlacementId whole;
    TRY(placement_intern(&a->placements, (Placement){.kind = PLACEMENT_REPLICATE}, &whole));
    for (Value v = 0; v < g->n_values; v++) {
        a->pin[v] = NO_PLACEMENT;
        if (pinned[v])
            TRY(placement_from_layout(&a->placements, &p->pin[v], 1u << axis, &g->value[v].dims,
                                      &a->pin[v]));
    }
    TRY(rows_open(a));
    TRY(place_choose(a, &choice));
    add_axis(p, a, choice);
    return OK;
}

static Err place_in(PlacedGraph *p, const CompileOptions *o, Arena *temp)
{
    bool *pinned;
    TRY(strategy_pins(o->strategy, p->g, o->mesh, p->g->arena, &p->pin, &pinned));
    TRY(open_placed(p, temp));
    const unsigned axes = unit_axes(o->mesh);
    for (int i = 0; i < o->mesh->view[VIEW_DENSE].n_axes; i++)
        if (axes >> i & 1) TRY(choose_axis(p, pinned, i, o, temp));
    for (Value v = 0; v < p->n_values; v++)
        if (!pinned[v]) p->pin[v] = p->made[v];
    return place_local(p);
}

Err place(Graph *g, const CompileOptions *o)
{
    PlacedGraph p = {.g = g, .mesh = o->mesh, .rank = o->rank};
    Arena temp;
    TRY(arena_open(&temp, "place", (size_t)1 << 32));
    const Err err = place_in(&p, o, &temp);
    arena_close(&temp);
    TRY(err);
    return graph_check(g);
}
