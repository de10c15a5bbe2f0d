/* place.c -- the placement of a unit on the mesh, forward and backward together, and its graph for
 * one rank.
 *
 *   before:  %7 = linear %5 %w        global shapes; only the strategy's pins have layouts
 *   after:   %8 = all_gather %5 on comm;  %9 = wait %8;  %7 = linear %9 %w      shapes of this rank
 *
 * Per axis, the last of the view first: pins, then the rows with the fewest bytes between pins
 * (place_choose.c), on what earlier axes left of each value. Cuts of one dim nest in the order of
 * the strategy: tokens over cp and within that over tp, heads over tp and within that over cp. If a
 * value is made in one layout and read in another, a transfer is inserted (place_reshard.c). An
 * axis of one rank leaves nothing to choose, so on one rank nothing is inserted and shapes stay
 * as they are. Data-parallel ranks have micro-batches of their own, so dp does not appear in a
 * unit. */
#include "compile/place.h"

#include <string.h>

unsigned place_unit_axes(const Mesh *m)
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
    TRY(ARENA_NEW(temp, g->n_values + 1, &p->copy_sums));
    TRY(ARENA_NEW(temp, g->n_values + 1, &p->shape));
    TRY(ARENA_NEW(temp, g->n_nodes + 1, &p->share));
    for (Value v = 0; v < g->n_values; v++) {
        p->shape[v] = shape_of(&g->value[v].dims);
        p->made[v] = layout_replicate(VIEW_DENSE);
        if (role_given(g->value[v].role)) p->made[v] = p->pin[v];
    }
    for (int i = 0; i < g->n_nodes; i++) {
        p->share[i] = 1;
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
            if (axis->placements.list[id].copy_sums) p->copy_sums[n->out[j]] |= (uint8_t)bit;
        }
    }
}

/* The layout as pinned along the pinned axes, and as made along the others. */
static Layout pin_or_made(const PlacedGraph *p, Value v, unsigned pinned)
{
    const Layout *pin = &p->pin[v], *made = &p->made[v];
    Layout l = layout_replicate(VIEW_DENSE);
    l.partial = (uint8_t)((pin->partial & pinned) | (made->partial & ~pinned));
    for (int i = 0; i < pin->n_cuts; i++)
        if (pin->cut[i].axes & pinned) l.cut[l.n_cuts++] = pin->cut[i];
    for (int i = 0; i < made->n_cuts; i++)
        if (!(made->cut[i].axes & pinned)) l.cut[l.n_cuts++] = made->cut[i];
    return strategy_nested(l, p->mesh, strategy_token_dim(&p->g->value[v].dims));
}

/* The axes that are searched before `axis`: those after it in the view. */
static unsigned searched_before(const Mesh *m, int axis)
{
    return place_unit_axes(m) & ~((2u << axis) - 1);
}

/* The largest part of a cut. */
static int64_t largest_part(const Cut *c, const Mesh *m, int64_t extent)
{
    const int parts = mesh_parts(m, VIEW_DENSE, c->axes);
    int64_t most = 0;
    for (int p = 0; p < parts; p++) {
        const Span even = even_part(extent, c->grain, parts, p);
        const int64_t n = c->map     ? held_map(c->map, p).count
                          : c->group ? held_read(held_all(extent), c->group, parts, p).count
                                     : span_count(even);
        if (n > most) most = n;
    }
    return most;
}

/* Sets what the axes in `seen` leave of each value. */
static Err open_remainders(const PlacedGraph *p, const unsigned *pinned, unsigned seen,
                           PlaceContext *a)
{
    TRY(ARENA_NEW(a->arena, p->n_values + 1, &a->dims));
    TRY(ARENA_NEW(a->arena, p->n_values + 1, &a->bytes));
    for (Value v = 0; v < p->n_values; v++) {
        const ValueInfo *info = &p->g->value[v];
        const Layout l = pin_or_made(p, v, pinned[v]);
        int64_t parts = 1;
        a->dims[v] = info->dims;
        for (int i = 0; i < l.n_cuts; i++) {
            Dim *d = &a->dims[v].dim[l.cut[i].dim];
            if (!(l.cut[i].axes & seen)) continue;
            if (l.cut[i].dim != strategy_token_dim(&info->dims))
                d->cap = largest_part(&l.cut[i], p->mesh, d->cap);
            parts *= mesh_parts(p->mesh, VIEW_DENSE, l.cut[i].axes);
        }
        a->bytes[v] = dims_count(&info->dims) * (int64_t)dtype_bytes(info->dtype) / parts;
    }
    return OK;
}

/* The pin of a value along the axis. Copies of a gradient are summands. */
static Err pin_along(const PlacedGraph *p, PlaceContext *a, Value v)
{
    PlacementTable *table = &a->placements;
    TRY(placement_from_layout(table, &p->pin[v], 1u << a->axis, &a->dims[v], &a->pin[v]));
    Placement pin = table->list[a->pin[v]];
    if (pin.kind != PLACEMENT_SHARD || strncmp(p->g->value[v].name, "d.", 2) != 0) return OK;
    pin.copy_sums = table->split[pin.split].map->copies;
    return placement_intern(table, pin, &a->pin[v]);
}

void place_price_axis(PlaceContext *a, const CostRates *rates)
{
    const View *v = &a->mesh->view[VIEW_DENSE];
    int stride = 1;
    for (int i = a->axis + 1; i < v->n_axes; i++) stride *= v->size[i];
    a->rates = rates;
    a->group = cost_group_strided(rates, v->size[a->axis], stride);
}

Err place_open_axis(const PlacedGraph *p, const unsigned *pinned, int axis, const CompileOptions *o,
                    Arena *temp, PlaceContext **out)
{
    Graph *g = p->g;
    PlaceContext *a;
    PlacementId whole;
    TRY(ARENA_NEW(temp, 1, &a));
    *a = (PlaceContext){
        .g = g, .mesh = p->mesh, .arena = temp, .axis = axis, .regather = !o->keep_gathered};
    a->placements =
        (PlacementTable){.arena = g->arena, .parts = p->mesh->view[VIEW_DENSE].size[axis]};
    a->n_forward = first_backward(g);
    a->switches = o->strategy->switches;
    a->share = p->share;
    a->context = mesh_axes(p->mesh, VIEW_DENSE, "cp") >> axis & 1;
    TRY(open_remainders(p, pinned, searched_before(p->mesh, axis), a));
    TRY(ARENA_NEW(temp, g->n_values + 1, &a->pin));
    TRY(placement_intern(&a->placements, (Placement){.kind = PLACEMENT_REPLICATE}, &whole));
    for (Value v = 0; v < g->n_values; v++) {
        a->pin[v] = NO_PLACEMENT;
        if (pinned[v] >> axis & 1) TRY(pin_along(p, a, v));
    }
    *out = a;
    return OK;
}

/* Places the parts of the graph one by one. */
static Err choose_parts(const PlacedGraph *p, const unsigned *pinned, PlaceContext *a,
                        RowChoice **choice)
{
    const Graph *g = p->g;
    int *part, n_parts;
    bool *only;
    TRY(place_parts(p, pinned, a->axis, a->arena, &part, &n_parts));
    TRY(ARENA_NEW(a->arena, g->n_nodes + 1, &only));
    a->only = only;
    for (int k = 0; k < n_parts; k++) {
        for (int i = 0; i < g->n_nodes; i++) only[i] = part[i] == k;
        TRY(rows_open(a));
        TRY(place_choose(a, choice));
    }
    return OK;
}

/* Along cp seconds decide, since a saved transfer costs repeated work. Along tp Megatron's pins of
 * weights leave few choices, and bytes decide; other layouts of weights leave more. Their seconds
 * are linear, so that micro-batches of all sizes have the same placements. */
static Err choose_axis(PlacedGraph *p, const unsigned *pinned, int axis, const CompileOptions *o,
                       Arena *temp)
{
    const Graph *g = p->g;
    RowChoice *choice;
    PlaceContext *a;
    TRY(place_open_axis(p, pinned, axis, o, temp, &a));
    if (a->context) place_price_axis(a, cost_default_rates());
    if (!a->context && o->strategy->by_seconds) {
        CostRates *rates;
        TRY(ARENA_NEW(temp, 1, &rates));
        *rates = cost_linear_rates(cost_default_rates());
        place_price_axis(a, rates);
    }
    TRY(ARENA_NEW(temp, g->n_nodes + 1, &choice));
    if (o->strategy->by_seconds && !a->context) {
        TRY(choose_parts(p, pinned, a, &choice));
    } else {
        TRY(rows_open(a));
        TRY(place_choose(a, &choice));
    }
    add_axis(p, a, choice);
    for (int i = 0; i < g->n_nodes; i++)
        if (a->flops[i] > 0) p->share[i] *= choice[i].flops / a->flops[i];
    return OK;
}

/* Nests the cuts of all layouts in the strategy's order. */
static void nest_layouts(PlacedGraph *p, const unsigned *pinned)
{
    for (Value v = 0; v < p->n_values; v++) {
        p->made[v] = strategy_nested(p->made[v], p->mesh, strategy_token_dim(&p->g->value[v].dims));
        p->pin[v] = pin_or_made(p, v, pinned[v]);
    }
    for (int i = 0; i < p->n_nodes; i++)
        for (int j = 0; j < p->g->node[i].n_in; j++)
            p->want[i][j] = strategy_nested(
                p->want[i][j], p->mesh, strategy_token_dim(&p->g->value[p->g->node[i].in[j]].dims));
}

/* The stream has the layout that its writer pins: a unit whose strategy pins x otherwise converts
 * it. */
static void pin_stream(PlacedGraph *p, const Layout *x)
{
    for (Value v = 0; v < p->g->n_values; v++)
        if (p->g->value[v].role == ROLE_X || p->g->value[v].role == ROLE_DX) p->pin[v] = *x;
}

/* Axes are searched from the last one on: heads nest within tp. */
static Err search_axes(PlacedGraph *p, const unsigned *pinned, const CompileOptions *o, Arena *temp)
{
    const unsigned axes = place_unit_axes(o->mesh);
    for (int i = o->mesh->view[VIEW_DENSE].n_axes - 1; i >= 0; i--)
        if (axes >> i & 1) TRY(choose_axis(p, pinned, i, o, temp));
    nest_layouts(p, pinned);
    return OK;
}

Err place_open(PlacedGraph *p, const CompileOptions *o, Arena *temp, unsigned **pinned)
{
    TRY(strategy_pins(o->strategy, p->g, o->mesh, p->g->arena, &p->pin, pinned));
    if (o->x) pin_stream(p, o->x);
    return open_placed(p, temp);
}

static Err place_in(PlacedGraph *p, const CompileOptions *o, Arena *temp)
{
    unsigned *pinned;
    TRY(place_open(p, o, temp, &pinned));
    if (!o->places) {
        TRY(search_axes(p, pinned, o, temp));
        return place_local(p);
    }
    const PlaceKey key = place_memo_key(p, pinned, o);
    if (!place_memo_find(o->places, &key, p)) {
        TRY(search_axes(p, pinned, o, temp));
        TRY(place_memo_keep(o->places, &key, p, temp));
    }
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
