/* test_pass_place_seconds.c -- the search of place by seconds, where they and bytes disagree. */
#include "support/graph_test.h"

#include "compile/place.h"
#include "ir/build.h"

/* How one linear of [t,d] x, by tokens on cp=8, to a whole y [t,4d] is placed: PLACEMENT_SHARD if
 * each rank runs its tokens and y is gathered, PLACEMENT_REPLICATE if x is gathered and every rank
 * runs all. */
static PlacementKind linear_on(int64_t d, const CostRates *rates)
{
    enum { ROWS_IN = 4096, CP = 8 };
    GraphTest test;
    Mesh mesh;
    Layout *pin;
    unsigned *pinned;
    RowChoice *choice;
    PlacementId whole;
    static const StrategyRow row[] = {{"x", "cp", 0, BY_ONE}};
    const Strategy s = {.name = "rows", .row = row, .n = 1};
    DO(mesh_sized(&(MeshSizes){.cp = CP}, &mesh));
    graph_test_open(&test, "test");
    Graph *g = &test.g;
    const Value x = graph_value(g, ROLE_X, "x", F32, dims2(dim_of(ROWS_IN), dim_of(d)));
    const Value w = weight2(g, "w", 4 * d, d, 0.1);
    stream_out(g, linear(g, x, w, NO_VALUE));
    DO(graph_err(g));
    PlaceContext p = {.g = g, .mesh = &mesh, .arena = &test.arena, .axis = 2, .rates = rates};
    p.n_forward = g->n_nodes;
    p.placements = (PlacementTable){.arena = &test.arena, .parts = CP};
    if (rates) p.group = cost_group_strided(rates, CP, 1);
    DO(placement_intern(&p.placements, (Placement){.kind = PLACEMENT_REPLICATE}, &whole));
    DO(ARENA_NEW(&test.arena, g->n_values, &p.pin));
    DO(ARENA_NEW(&test.arena, g->n_values, &p.dims));
    DO(ARENA_NEW(&test.arena, g->n_values, &p.bytes));
    DO(ARENA_NEW(&test.arena, g->n_nodes, &p.share));
    DO(ARENA_NEW(&test.arena, g->n_nodes, &choice));
    DO(strategy_pins(&s, g, &mesh, &test.arena, &pin, &pinned));
    p.share[0] = 1;
    for (Value v = 0; v < g->n_values; v++) {
        p.dims[v] = g->value[v].dims;
        p.bytes[v] = dims_count(&p.dims[v]) * (int64_t)sizeof(float);
        DO(placement_from_layout(&p.placements, &pin[v], 1u << p.axis, &p.dims[v], &p.pin[v]));
    }
    DO(rows_open(&p));
    DO(place_choose(&p, &choice));
    const PlacementKind kind = p.placements.list[choice[0].out[0]].kind;
    arena_close(&test.arena);
    return kind;
}

/* A GEMM on all tokens saves three of four bytes. By seconds that pays while the GEMM is small. */
static void seconds_decide(void **state)
{
    (void)state;
    assert_int_equal(linear_on(16, NULL), PLACEMENT_REPLICATE);
    assert_int_equal(linear_on(16384, NULL), PLACEMENT_REPLICATE);
    assert_int_equal(linear_on(16, cost_default_rates()), PLACEMENT_REPLICATE);
    assert_int_equal(linear_on(16384, cost_default_rates()), PLACEMENT_SHARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seconds_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
