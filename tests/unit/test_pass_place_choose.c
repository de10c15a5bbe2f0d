/* The rows that place chooses are the cheapest there are: every way to run every node is tried, one
 * node after another, nothing merged and nothing remembered; what is sent is counted as the rule
 * says, not as the search does:
 *
 *     a value that is read in another lay than it is made in is brought there once; what is made cut
 *     and was brought elsewhere in F is brought again in the backward part, unless it is kept
 *
 * A way is given up when it already costs as much as the choice of place; so nothing better is left
 * out, and the test fails when there is something better. */
#include "place_units.h"

#include "compile/place.h"

typedef struct {
    int64_t bytes;
    int steps;
    double flops;
} Cost;

static int compare(const Cost *a, const Cost *b)
{
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    if (a->steps != b->steps) return a->steps < b->steps ? -1 : 1;
    return a->flops < b->flops * (1 - 1e-12) ? -1 : a->flops > b->flops * (1 + 1e-12);
}

enum { MAX_VALUES = 96, MAX_NODES = 64 };

/* How a value lies, and where it was brought, in F and after: bits of lays. */
typedef struct {
    PlacementId base;
    uint64_t there[2];
} Lying;

typedef struct {
    PlaceContext p;
    bool *inside;
    Lying lying[MAX_VALUES];
    Cost limit;
    double flops_left[MAX_NODES + 1]; /* at least, from each node on */
    bool found;
} Brute;

static bool bring_there(Brute *b, int node, Value v, PlacementId to, Cost *cost)
{
    PlaceContext *p = &b->p;
    Lying *l = &b->lying[v];
    const bool after = node >= p->n_forward;
    const Placement *from = &p->placements.list[l->base], *want = &p->placements.list[to];
    const bool kept = !p->regather || from->kind != PLACEMENT_SHARD;
    uint64_t there = l->there[after];
    if (after && kept) there |= l->there[0];
    if (l->base == to || there >> to & 1) return true;
    if (p->g->value[v].role == ROLE_PARAM) return false;
    const bool sums = from->kind == PLACEMENT_SUM || from->kind == PLACEMENT_MAX;
    if (b->inside[v] && !(sums && want->kind == PLACEMENT_REPLICATE)) return false;
    const int64_t bytes =
        dims_count(&p->g->value[v].dims) * (int64_t)dtype_bytes(p->g->value[v].dtype);
    int steps;
    const int64_t sent = placement_reshard_bytes(&p->placements, l->base, to, bytes, &steps);
    if (sent < 0) return false;
    cost->bytes += sent;
    cost->steps += steps;
    l->there[after] |= (uint64_t)1 << to;
    return true;
}

/* Runs the node that way; false when it cannot be. What it changes of b->lying is the caller's to
 * put back. */
static bool run_way(Brute *b, int node, const RowChoice *c, Cost *cost)
{
    PlaceContext *p = &b->p;
    const Node *n = &p->g->node[node];
    const Signature sig = op_signature(n->op);
    for (int i = 0; i < n->n_in; i++) {
        const PlacementKind base = p->placements.list[b->lying[n->in[i]].base].kind;
        const bool first_adds = sig.in[i].added && base == PLACEMENT_REPLICATE &&
                                p->placements.list[c->in[i]].kind == PLACEMENT_SUM;
        if (!first_adds && !bring_there(b, node, n->in[i], c->in[i], cost)) return false;
    }
    for (int i = 0; i < n->n_out; i++) {
        const Value v = n->out[i];
        b->lying[v] = (Lying){c->out[i], {0, 0}};
        if (p->pin[v] == NO_PLACEMENT) continue;
        if (!bring_there(b, node, v, p->pin[v], cost)) return false;
        b->lying[v] = (Lying){p->pin[v], {0, 0}};
    }
    cost->flops += c->flops;
    return true;
}

static int lays_there(const Brute *b, Value v, int node, PlacementId avail[4])
{
    const Lying *l = &b->lying[v];
    const bool kept = !b->p.regather || b->p.placements.list[l->base].kind != PLACEMENT_SHARD;
    uint64_t there = l->there[node >= b->p.n_forward];
    int n = 0;
    if (kept) there |= l->there[0];
    avail[n++] = l->base;
    for (int i = 0; i < b->p.placements.n_placements && n < 4; i++)
        if (there >> i & 1) avail[n++] = (PlacementId)i;
    return n;
}

/* Everything that can follow. */
static void try_all(Brute *b, int node, Cost cost)
{
    const Graph *g = b->p.g;
    Cost least = cost;
    least.flops += b->flops_left[node];
    if (compare(&least, &b->limit) >= 0) return;
    if (node == g->n_nodes) {
        b->limit = cost;
        b->found = true;
        return;
    }
    const Node *n = &g->node[node];
    RowChoice choice[MAX_CHOICES];
    PlacementId avail[MAX_IN][4];
    int n_avail[MAX_IN], n_choices;
    Lying keep[MAX_VALUES];
    for (int i = 0; i < n->n_in; i++) n_avail[i] = lays_there(b, n->in[i], node, avail[i]);
    DO(rows_of_node(&b->p, node, avail, n_avail, choice, &n_choices));
    memcpy(keep, b->lying, sizeof keep);
    for (int i = 0; i < n_choices; i++) {
        Cost next = cost;
        if (run_way(b, node, &choice[i], &next)) try_all(b, node + 1, next);
        memcpy(b->lying, keep, sizeof keep);
    }
}

static void first_lying(Brute *b)
{
    const Graph *g = b->p.g;
    for (Value v = 0; v < g->n_values; v++)
        b->lying[v] =
            (Lying){role_given(g->value[v].role) ? b->p.pin[v] : placement_replicate(), {0, 0}};
}

typedef struct {
    const char *name;
    const Strategy *strategy;
    int tp;
    bool regather;
} Case;

static void open_brute(Brute *b, const Case *c, const Graph *g, const Mesh *mesh, Arena *arena)
{
    Layout *pin;
    bool *pinned;
    PlacementId whole;
    int axis = 0;
    while (!(mesh_axes(mesh, VIEW_DENSE, "tp") >> axis & 1)) axis++;
    assert_true(g->n_values < MAX_VALUES && g->n_nodes < MAX_NODES);
    b->p =
        (PlaceContext){.g = g, .mesh = mesh, .arena = arena, .axis = axis, .regather = c->regather};
    b->p.placements = (PlacementTable){.arena = arena, .parts = c->tp};
    DO(placement_intern(&b->p.placements, (Placement){.kind = PLACEMENT_REPLICATE}, &whole));
    DO(ARENA_NEW(arena, g->n_values, &b->p.pin));
    DO(strategy_pins(c->strategy, g, mesh, arena, &pin, &pinned));
    for (Value v = 0; v < g->n_values; v++) {
        b->p.pin[v] = NO_PLACEMENT;
        if (pinned[v])
            DO(placement_from_layout(&b->p.placements, &pin[v], 1u << axis, &g->value[v].dims,
                                     &b->p.pin[v]));
    }
    DO(rows_open(&b->p));
    DO(place_inside(g, arena, &b->inside));
    for (int i = g->n_nodes - 1; i >= 0; i--)
        b->flops_left[i] = b->flops_left[i + 1] + b->p.flops[i] / c->tp;
}

static void try_case(Builder build, const char *unit, const Case *c)
{
    Bed bed;
    build(&bed);
    DO(graph_err(&bed.g));
    const int n_forward = bed.g.n_nodes;
    DO(differentiate(&bed.g));
    const Mesh mesh = mesh_tp(c->tp);
    Brute *b;
    RowChoice *choice;
    Cost chosen = {0};
    DO(ARENA_NEW(&bed.arena, 1, &b));
    DO(ARENA_NEW(&bed.arena, bed.g.n_nodes, &choice));
    open_brute(b, c, &bed.g, &mesh, &bed.arena);
    b->p.n_forward = graph_find(&bed.g, ROLE_DY) == NO_VALUE ? bed.g.n_nodes : n_forward;
    DO(place_choose(&b->p, &choice));
    assert_true(b->p.placements.n_placements < 64);
    first_lying(b);
    for (int i = 0; i < bed.g.n_nodes; i++)
        if (!run_way(b, i, &choice[i], &chosen))
            fail_msg("%s, %s: node %d cannot run as chosen", unit, c->name, i);
    first_lying(b);
    b->limit = chosen;
    try_all(b, 0, (Cost){0});
    if (b->found)
        fail_msg("%s, %s: %lld bytes in %d steps and %g flops, where %lld in %d and %g are enough",
                 unit, c->name, (long long)chosen.bytes, chosen.steps, chosen.flops,
                 (long long)b->limit.bytes, b->limit.steps, b->limit.flops);
    bed_close(&bed);
}

static void try_unit(Builder build, const char *unit, const int *tps)
{
    const Strategy plain = strategy_with_heads(&strategy_tp, HEADS, KEY_HEADS, SIZE);
    const Strategy sequence = strategy_with_heads(&strategy_tp_sequence, HEADS, KEY_HEADS, SIZE);
    for (; *tps; tps++)
        for (int regather = 0; regather < 2; regather++) {
            try_case(build, unit, &(Case){"plain", &plain, *tps, regather});
            try_case(build, unit, &(Case){"sequence", &sequence, *tps, regather});
            for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
                try_case(build, unit, &(Case){odd[i].name, &odd[i], *tps, regather});
        }
}

static void test_mlp(void **state)
{
    (void)state;
    try_unit(build_mlp, "mlp", (const int[]){2, 3, 0});
}

static void test_embed(void **state)
{
    (void)state;
    try_unit(build_embed, "embed", (const int[]){2, 3, 7, 0});
}

static void test_head(void **state)
{
    (void)state;
    try_unit(build_head, "head", (const int[]){2, 3, 0});
}

static void test_attention(void **state)
{
    (void)state;
    try_unit(build_attention, "attention", (const int[]){2, 3, 0});
}

/* Fifty nodes: what a model is made of. */
static void test_layer(void **state)
{
    (void)state;
    try_unit(build_layer, "layer", (const int[]){2, 3, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp), cmocka_unit_test(test_embed), cmocka_unit_test(test_head),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
