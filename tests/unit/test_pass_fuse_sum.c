/* test_pass_fuse_sum.c -- fuse, before and after: a sum is accumulated by the GEMM that makes
 * one of its terms, if the other term is made by the unit and has no other reader. */
#include "support/graph_test.h"

static Value gemm(GraphTest *b, Value x, Value w) { return linear(&b->g, x, w, NO_VALUE); }

/* d.x = gelu_dx + a GEMM: the GEMM adds to the output of gelu_dx. */
static void sum_into_gemm(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D), p = gemm(&b, x, w);
    stream_out(&b.g, add(&b.g, gelu(&b.g, p), gelu(&b.g, x)));
    graph_test_prepare(&b, true);
    Graph *g = &b.g;
    const int n = g->n_nodes;
    DO(fuse(g));
    assert_int_equal(g->n_nodes, n - 1);
    const Node *dx = graph_test_node(&b, "d.x");
    assert_int_equal(dx->op, OP_linear_dx);
    assert_int_equal(dx->n_in, 3);
    assert_int_equal(g->node[graph_maker(g, dx->in[2])].op, OP_gelu_dx);
    assert_int_equal(dx->keep[0], SLOT_ONE);
    graph_test_close(&b);
}

/* dy comes from outside and must not be added to; and a term with other readers stays as it is. */
static void sum_stays_apart(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D);
    stream_out(&b.g, add(&b.g, x, gemm(&b, x, w)));
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    graph_test_expect(&b, "residual",
                      "  F  %2 [6,4] = linear %0 %1\n"
                      "  F  %3 y [6,4] = add %0 %2\n"
                      "  F  %5 [6,4] = linear_dx %4 %1\n"
                      "  F  %6 d.x [6,4] = add %4 %5\n"
                      "  F  %7 d.w [4,4] += linear_dw %4 %0 {port 0}\n");
    graph_test_close(&b);
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value z = graph_test_x(&b), w1 = graph_test_w(&b, "a", D, D),
                w2 = graph_test_w(&b, "b", D, D);
    const Value a = gemm(&b, gelu(g, z), w1); /* its gradient is read by its dw too */
    stream_out(g, gelu(g, add(g, a, gemm(&b, a, w2))));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    const Node *sum = &g->node[graph_maker(g, graph_test_node(&b, "d.a")->in[0])];
    assert_int_equal(sum->op, OP_add);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_into_gemm),
        cmocka_unit_test(sum_stays_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
