/* test_pass_place_choose.c -- the rows that place chooses are the cheapest. Every choice of a
 * row for every node is tried, one node after another, without merging or memoization. Traffic
 * is counted by the rule, not as the search does:
 *
 *     a value that is read in another placement than it is made in is resharded once; a value that
 *     is made sharded and was resharded in F is resharded again in backward, unless it is kept
 *
 * A branch is pruned when it already costs as much as place's choice. So no better choice is
 * skipped, and the test fails if there is one. */
#include "place_units.h"

#include "compile/place.h"

#define WHOLE ((uint64_t)1) /* gathered: the copy that F does not keep */

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

/* The placement of a value, and those to which it was resharded, in F and after: bits of
 * placements. */
typedef struct {
    PlacementId base;
    uint64_t there[2];
} Placements;

typedef struct {
    PlaceContext p;
    bool *inside;
    Placements placed[MAX_VALUES];
    Cost limit;
    double flops_left[MAX_NODES + 1]; /* lower bound, from each node on */
    bool found;
} Brute;

static bool reshard_there(Brute *b, int node, Value v, PlacementId to, Cost *cost)
{
    PlaceContext *p = &b->p;
    Placements *l = &b->placed[v];
    const bool after = node >= p->n_forward;
    const Placement *from = &p->placements.list[l->base], *want = &p->placements.list[to];
    const bool kept = !p->regather || from->kind != PLACEMENT_SHARD;
    uint64_t there = l->there[after];
    if (after) there |= kept ? l->there[0] : l->there[0] & ~WHOLE;
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

/* Runs the node by this row; returns false if it cannot run. The caller restores b->placed. */
static bool run_row(Brute *b, int node, const RowChoice *c, Cost *cost)
{
    PlaceContext *p = &b->p;
    const Node *n = &p->g->node[node];
    const Signature sig = op_signature(n->op);
    for (int i = 0; i < n->n_in; i++) {
        const PlacementKind base = p->placements.list[b->placed[n->in[i]].base].kind;
        const bool first_adds = sig.in[i].added && base == PLACEMENT_REPLICATE &&
                                p->placements.list[c->in[i]].kind == PLACEMENT_SUM;
        if (!first_adds && !reshard_there(b, node, n->in[i], c->in[i], cost)) return false;
    }
    for (int i = 0; i < n->n_out; i++) {
        const Value v = n->out[i];
        b->placed[v] = (Placements){c->out[i], {0, 0}};
        if (p->pin[v] == NO_PLACEMENT) continue;
        if (!reshard_there(b, node, v, p->pin[v], cost)) return false;
        b->placed[v] = (Placements){p->pin[v], {0, 0}};
    }
    cost->flops += c->flops;
    return true;
}

static int list_avail(const Brute *b, Value v, int node, PlacementId avail[4])
{
    const Placements *l = &b->placed[v];
    const bool kept = !b->p.regather || b->p.placements.list[l->base].kind != PLACEMENT_SHARD;
    uint64_t there = l->there[node >= b->p.n_forward];
    int n = 0;
    if (node >= b->p.n_forward) there |= kept ? l->there[0] : l->there[0] & ~WHOLE;
    avail[n++] = l->base;
    for (int i = 0; i < b->p.placements.n_placements && n < 4; i++)
        if (there >> i & 1) avail[n++] = (PlacementId)i;
    return n;
}

/* Tries all continuations. */
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
    Placements keep[MAX_VALUES];
    for (int i = 0; i < n->n_in; i++) n_avail[i] = list_avail(b, n->in[i], node, avail[i]);
    DO(rows_of_node(&b->p, node, avail, n_avail, choice, &n_choices));
    memcpy(keep, b->placed, sizeof keep);
    for (int i = 0; i < n_choices; i++) {
        Cost next = cost;
        if (run_row(b, node, &choice[i], &next)) try_all(b, node + 1, next);
        memcpy(b->placed, keep, sizeof keep);
    }
}

static void first_placed(Brute *b)
{
    const Graph *g = b->p.g;
    for (Value v = 0; v < g->n_values; v++)
        b->placed[v] = (Placements){
            role_given(g->value[v].role) ? b->p.pin[v] : placement_replicate(), {0, 0}};
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
    unsigned *pinned;
    PlacementId replicate;
    int axis = 0;
    while (!(mesh_axes(mesh, VIEW_DENSE, "tp") >> axis & 1)) axis++;
    assert_true(g->n_values < MAX_VALUES && g->n_nodes < MAX_NODES);
    b->p =
        (PlaceContext){.g = g, .mesh = mesh, .arena = arena, .axis = axis, .regather = c->regather};
    b->p.placements = (PlacementTable){.arena = arena, .parts = c->tp};
    DO(placement_intern(&b->p.placements, (Placement){.kind = PLACEMENT_REPLICATE}, &replicate));
    DO(ARENA_NEW(arena, g->n_values, &b->p.pin));
    DO(strategy_pins(c->strategy, g, mesh, arena, &pin, &pinned));
    for (Value v = 0; v < g->n_values; v++) {
        b->p.pin[v] = NO_PLACEMENT;
        if (pinned[v])
            DO(placement_from_layout(&b->p.placements, &pin[v], 1u << axis, &g->value[v].dims,
                                     &b->p.pin[v]));
    }
    DO(ARENA_NEW(arena, g->n_values, &b->p.dims));
    DO(ARENA_NEW(arena, g->n_values, &b->p.bytes));
    DO(ARENA_NEW(arena, g->n_nodes, &b->p.share));
    for (Value v = 0; v < g->n_values; v++) {
        b->p.dims[v] = g->value[v].dims;
        b->p.bytes[v] = dims_count(&g->value[v].dims) * (int64_t)dtype_bytes(g->value[v].dtype);
    }
    for (int i = 0; i < g->n_nodes; i++) b->p.share[i] = 1;
    DO(rows_open(&b->p));
    DO(place_inside(g, arena, &b->inside));
    for (int i = g->n_nodes - 1; i >= 0; i--)
        b->flops_left[i] = b->flops_left[i + 1] + b->p.flops[i] / c->tp;
}

static void try_case(Builder build, const char *unit, const Case *c)
{
    GraphTest test;
    build(&test);
    DO(graph_err(&test.g));
    const int n_forward = test.g.n_nodes;
    DO(differentiate(&test.g));
    const Mesh mesh = mesh_tp(c->tp);
    Brute *b;
    RowChoice *choice;
    Cost chosen = {0};
    DO(ARENA_NEW(&test.arena, 1, &b));
    DO(ARENA_NEW(&test.arena, test.g.n_nodes, &choice));
    open_brute(b, c, &test.g, &mesh, &test.arena);
    b->p.n_forward = graph_find(&test.g, ROLE_DY) == NO_VALUE ? test.g.n_nodes : n_forward;
    DO(place_choose(&b->p, &choice));
    assert_true(b->p.placements.n_placements < 64);
    first_placed(b);
    for (int i = 0; i < test.g.n_nodes; i++)
        if (!run_row(b, i, &choice[i], &chosen))
            fail_msg("%s, %s: node %d cannot run as chosen", unit, c->name, i);
    first_placed(b);
    b->limit = chosen;
    try_all(b, 0, (Cost){0});
    if (b->found)
        fail_msg("%s, %s: %lld bytes in %d steps and %g flops, where %lld in %d and %g are enough",
                 unit, c->name, (long long)chosen.bytes, chosen.steps, chosen.flops,
                 (long long)b->limit.bytes, b->limit.steps, b->limit.flops);
    graph_test_close(&test);
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

/* Fifty nodes, as in a model. */
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
