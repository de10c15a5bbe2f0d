/* test_pass_experts.c -- GEMMs over the rows of experts become one op where they share an operand
 * or end in a swiglu; not where a value has other readers, is recomputed, or other offsets. */
#include "place_test.h"

enum { EXPERTS = 3, CHOSEN = 2 };

static Value weights(Graph *g, const char *name, int64_t out, int64_t in)
{
    return graph_param(g, (ParamInfo){.name = name, .ndim = 3, .n = {EXPERTS, out, in}});
}

/* y = x + experts of x */
static void build(GraphTest *b)
{
    const Attr attr = {.route = {.scaling = 1}};
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), router = graph_test_w(b, "router", EXPERTS, D);
    const Routing r = route(g, linear_wide(g, x, router), NO_VALUE, CHOSEN, &attr);
    const RowAssignment rows = assign_rows(g, r.expert, EXPERTS);
    const Value in = graph_name(g, permute(g, x, rows.at, NO_VALUE), "in");
    const Value wg = weights(g, "gate", F, D), wu = weights(g, "up", F, D);
    const Value gate = graph_name(g, grouped_linear(g, in, wg, rows.offsets), "a");
    const Value up = graph_name(g, grouped_linear(g, in, wu, rows.offsets), "b");
    const Value h = graph_name(g, grouped_swiglu(g, gate, up, rows.offsets), "h");
    const Value out = grouped_linear(g, h, weights(g, "down", D, F), rows.offsets);
    stream_out(g, add(g, x, unpermute(g, rows.at, out, r.gate)));
}

static void after(GraphTest *b, bool backward, Recompute how)
{
    build(b);
    graph_test_prepare(b, backward);
    DO(fuse(&b->g));
    DO(recompute(&b->g, &(CompileOptions){.recompute = how}));
    DO(epilogues(&b->g));
    DO(phases(&b->g));
}

static void expect_counts(const Graph *g, int swiglu, int dswiglu, int pair, int plain)
{
    assert_int_equal(count_nodes(g, OP_grouped_linear_swiglu), swiglu);
    assert_int_equal(count_nodes(g, OP_grouped_linear_dswiglu), dswiglu);
    assert_int_equal(count_nodes(g, OP_grouped_linear_dx2), pair);
    assert_int_equal(count_nodes(g, OP_grouped_linear), plain);
    assert_int_equal(count_nodes(g, OP_grouped_linear_dw), dswiglu ? 3 : 0);
    assert_int_equal(count_nodes(g, OP_grouped_linear_dx), 0);
}

static void everything_kept(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, true, RECOMPUTE_NONE);
    expect_counts(&b.g, 1, 1, 1, 1);
    const Node *forward = graph_test_node(&b, "a"), *back = graph_test_node(&b, "d.a");
    const Node *rows = graph_test_node(&b, "d.in");
    assert_int_equal(forward->op, OP_grouped_linear_swiglu);
    assert_int_equal(forward->phase, PHASE_F);
    assert_true(forward == graph_test_node(&b, "b") && forward == graph_test_node(&b, "h"));
    assert_int_equal(back->op, OP_grouped_linear_dswiglu);
    assert_int_equal(back->phase, PHASE_I);
    for (int k = 0; k < 2; k++) assert_int_equal(back->in[3 + k], forward->out[k]);
    assert_int_equal(rows->op, OP_grouped_linear_dx2);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(rows->in[2 * k], back->out[k]);
        assert_int_equal(rows->in[2 * k + 1], forward->in[1 + k]);
    }
    graph_test_close(&b);
}

/* h is made again from the kept gate and up; in F the three are still one. */
static void cheap_recomputed(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, true, RECOMPUTE_SELECTIVE);
    expect_counts(&b.g, 1, 1, 1, 1);
    assert_int_equal(graph_test_node(&b, "h'")->op, OP_grouped_swiglu);
    graph_test_close(&b);
}

/* Recomputed, gate and up are read in I, h in W. In F they have no reader but h. */
static void all_recomputed(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, true, RECOMPUTE_FULL);
    assert_int_equal(count_nodes(&b.g, OP_grouped_linear_swiglu), 0);
    assert_int_equal(count_nodes(&b.g, OP_grouped_linear_dswiglu), 1);
    assert_int_equal(count_nodes(&b.g, OP_grouped_linear_dx2), 1);
    graph_test_close(&b);
}

/* Without backward gate and up die at once. */
static void inference(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, false, RECOMPUTE_NONE);
    expect_counts(&b.g, 0, 0, 0, 3);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_kept),
        cmocka_unit_test(cheap_recomputed),
        cmocka_unit_test(all_recomputed),
        cmocka_unit_test(inference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
