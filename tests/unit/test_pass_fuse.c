/* test_pass_fuse.c -- fuse, before and after: GEMMs of one x with adjacent weights become one,
 * and nodes that must stay apart do. */
#include "support/graph_test.h"

static Value gemm(GraphTest *b, Value x, Value w) { return linear(&b->g, x, w, NO_VALUE); }

/* y = down swiglu(gate x, up x) */
static void gated(GraphTest *b, bool back)
{
    graph_test_open(b, "u");
    const Value x = graph_test_x(b), wg = graph_test_w(b, "gate", F, D),
                wu = graph_test_w(b, "up", F, D);
    const Value down = graph_test_w(b, "down", D, F), gate = gemm(b, x, wg), up = gemm(b, x, wu);
    stream_out(&b->g, gemm(b, swiglu(&b->g, gate, up), down));
    graph_test_prepare(b, back);
}

static void siblings(void **state)
{
    GraphTest b;
    (void)state;
    gated(&b, true);
    graph_test_expect(&b, "before",
                      "  F  %4 [6,5] = linear %0 %1\n"
                      "  F  %5 [6,5] = linear %0 %2\n"
                      "  F  %6 [6,5] = swiglu %4 %5\n"
                      "  F  %7 y [6,4] = linear %6 %3\n"
                      "  F  %9 [6,5] = linear_dx %8 %3\n"
                      "  F  %10 d.down [4,5] += linear_dw %8 %6 {port 2}\n"
                      "  F  %11 [6,5], %12 [6,5] = swiglu_dx %9 %4 %5\n"
                      "  F  %13 [6,4] = linear_dx %12 %2\n"
                      "  F  %14 d.up [5,4] += linear_dw %12 %0 {port 1}\n"
                      "  F  %15 [6,4] = linear_dx %11 %1\n"
                      "  F  %16 d.x [6,4] = add %13 %15\n"
                      "  F  %17 d.gate [5,4] += linear_dw %11 %0 {port 0}\n");
    DO(fuse(&b.g));
    graph_test_expect_all(&b, "after",
                          "u, f64\n"
                          "  %0 x [6,4]: stream from the unit before\n"
                          "  %1 gate [5,4]: parameter 0\n"
                          "  %2 up [5,4]: parameter 1\n"
                          "  %3 down [4,5]: parameter 2\n"
                          "  %8 d.y [6,4]: gradient from the unit after\n"
                          "  %18 gate..2 [10,4]: parameter 0 to 1\n"
                          "  F  %19 [6,10] = linear %0 %18\n"
                          "  F  %4 [6,5] = part %19 {dim 1 from 0}\n"
                          "  F  %5 [6,5] = part %19 {dim 1 from 5}\n"
                          "  F  %6 [6,5] = swiglu %4 %5\n"
                          "  F  %7 y [6,4] = linear %6 %3\n"
                          "  F  %9 [6,5] = linear_dx %8 %3\n"
                          "  F  %10 d.down [4,5] += linear_dw %8 %6 {port 2}\n"
                          "  F  %11 [6,5], %12 [6,5] = swiglu_dx %9 %4 %5\n"
                          "  F  %20 [6,10] = join %11 %12 {dim 1}\n"
                          "  F  %16 d.x [6,4] = linear_dx %20 %18\n"
                          "  F  %21 d.gate..2 [10,4] += linear_dw %20 %0 {port 0}\n");
    assert_int_equal(b.g.value[21].role, ROLE_DPARAM);
    assert_int_equal(b.g.value[21].span, 2);
    graph_test_close(&b);
}

static void siblings_forward_alone(void **state)
{
    GraphTest b;
    (void)state;
    gated(&b, false);
    DO(fuse(&b.g));
    graph_test_expect(&b, "forward",
                      "  F  %9 [6,10] = linear %0 %8\n"
                      "  F  %4 [6,5] = part %9 {dim 1 from 0}\n"
                      "  F  %5 [6,5] = part %9 {dim 1 from 5}\n"
                      "  F  %6 [6,5] = swiglu %4 %5\n"
                      "  F  %7 y [6,4] = linear %6 %3\n");
    graph_test_close(&b);
}

/* q x and k x with biases; sizes differ, biases are adjacent too. */
static void siblings_with_bias(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), wq = graph_test_w(&b, "q", D, D),
                wk = graph_test_w(&b, "k", E, D);
    const Value bq = vector(g, "qb", D, INIT_ZEROS), bk = vector(g, "kb", E, INIT_ZEROS);
    const Value wo = graph_test_w(&b, "o", D, E);
    const Value q = gelu(g, linear(g, x, wq, bq)), k = gelu(g, linear(g, x, wk, bk));
    stream_out(g, add(g, q, gemm(&b, k, wo)));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    graph_test_expect(&b, "with bias",
                      "  F  %26 [6,7] = linear %0 %24 %25\n"
                      "  F  %6 [6,4] = part %26 {dim 1 from 0}\n"
                      "  F  %7 [6,4] = gelu %6\n"
                      "  F  %8 [6,3] = part %26 {dim 1 from 4}\n"
                      "  F  %9 [6,3] = gelu %8\n"
                      "  F  %10 [6,4] = linear %9 %5\n"
                      "  F  %11 y [6,4] = add %7 %10\n"
                      "  F  %13 [6,3] = linear_dx %12 %5\n"
                      "  F  %14 d.o [4,3] += linear_dw %12 %9 {port 4}\n"
                      "  F  %15 [6,3] = gelu_dx %13 %8\n"
                      "  F  %19 [6,4] = gelu_dx %12 %6\n"
                      "  F  %27 [6,7] = join %19 %15 {dim 1}\n"
                      "  F  %21 d.x [6,4] = linear_dx %27 %24\n"
                      "  F  %28 d.q..2 [7,4] += linear_dw %27 %0 {port 0}\n"
                      "  F  %29 d.qb..2 [7] += bias_dw %27 {port 2}\n");
    graph_test_close(&b);
}

static int count_ops(const GraphTest *b, OpId op)
{
    int n = 0;
    for (int i = 0; i < b->g.n_nodes; i++) n += b->g.node[i].op == op;
    return n;
}

/* Graphs of two GEMMs a and b that look alike and must stay apart. */
typedef Value (*Twins)(GraphTest *b, Value x);

static Value sum_of_gelus(GraphTest *b, Value p, Value q)
{
    const Value left = gelu(&b->g, p), right = gelu(&b->g, q);
    return add(&b->g, left, right);
}

/* Another parameter is stored between the weights. */
static Value not_adjacent(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D);
    vector(&b->g, "between", E, INIT_ONES);
    const Value wb = graph_test_w(b, "b", D, D), p = gemm(b, x, wa);
    return sum_of_gelus(b, p, gemm(b, x, wb));
}

static Value other_x(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    return sum_of_gelus(b, p, gemm(b, gelu(&b->g, x), wb));
}

static Value one_has_a_bias(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    const Value q = linear(&b->g, x, wb, vector(&b->g, "bias", D, INIT_ZEROS));
    return sum_of_gelus(b, p, q);
}

/* dy itself is the gradient of one GEMM: it comes from outside and has storage of its own. */
static Value gradient_is_given(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    return add(&b->g, p, gelu(&b->g, gemm(b, x, wb)));
}

/* Both GEMMs have one gradient, which cannot be in two joins. */
static Value gradient_is_shared(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    return gelu(&b->g, add(&b->g, p, gemm(b, x, wb)));
}

/* A third GEMM shares a's gradient, and its part of dx comes before a's. */
static Value gradients_of_others(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D);
    vector(&b->g, "between", E, INIT_ONES);
    const Value wc = graph_test_w(b, "c", D, D);
    const Value p = gemm(b, x, wa), q = gemm(b, x, wb), r = gemm(b, x, wc);
    return sum_of_gelus(b, add(&b->g, p, r), q);
}

/* The weight a is used twice: its sum has two terms. */
static Value weight_twice(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    const Value q = gemm(b, x, wb);
    return sum_of_gelus(b, p, gemm(b, gelu(&b->g, q), wa));
}

/* The terms of dx are summed in an order that another term interrupts. */
static Value not_collapsible(GraphTest *b, Value x)
{
    const Value wa = graph_test_w(b, "a", D, D), wb = graph_test_w(b, "b", D, D),
                p = gemm(b, x, wa);
    const Value q = gelu(&b->g, x), r = gemm(b, x, wb);
    return add(&b->g, sum_of_gelus(b, p, r), q);
}

static void gemms_stay_apart(void **state)
{
    static const struct {
        const char *name;
        Twins twins;
        int gemms;    /* linear nodes before and after */
        bool forward; /* apart without a backward part too */
    } table[] = {
        {"weights not adjacent", not_adjacent, 2, true},
        {"another x", other_x, 2, true},
        {"one has a bias", one_has_a_bias, 2, true},
        {"the gradient is given", gradient_is_given, 2, false},
        {"the gradient is shared", gradient_is_shared, 2, false},
        {"another GEMM of the gradient", gradients_of_others, 3, false},
        {"a weight twice", weight_twice, 3, false},
        {"dx not collapsible", not_collapsible, 2, false},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof table / sizeof *table; i++) {
        const bool back = i % 2;
        if (!back && !table[i / 2].forward) continue;
        GraphTest b;
        graph_test_open(&b, "u");
        const Value x = graph_test_x(&b);
        stream_out(&b.g, table[i / 2].twins(&b, x));
        graph_test_prepare(&b, back);
        assert_int_equal(count_ops(&b, OP_linear), table[i / 2].gemms);
        const int sums = count_ops(&b, OP_linear_dw);
        DO(fuse(&b.g));
        if (count_ops(&b, OP_linear) != table[i / 2].gemms || count_ops(&b, OP_join) ||
            count_ops(&b, OP_linear_dw) != sums)
            fail_msg("%s: fused", table[i / 2].name);
        graph_test_close(&b);
    }
}

/* Eager frameworks pack GEMMs that read one x, and fuse nothing else: a sum stays an op. */
static void packed_models_stay_eager(void **state)
{
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        GraphTest b;
        gated(&b, true);
        DO(packed ? fuse_packed(&b.g) : fuse(&b.g));
        assert_int_equal(count_ops(&b, OP_linear), 2);
        graph_test_close(&b);
        graph_test_open(&b, "u");
        stream_out(&b.g, not_collapsible(&b, graph_test_x(&b)));
        graph_test_prepare(&b, true);
        const int sums = count_ops(&b, OP_add);
        DO(packed ? fuse_packed(&b.g) : fuse(&b.g));
        assert_true(packed ? count_ops(&b, OP_add) == sums : count_ops(&b, OP_add) < sums);
        graph_test_close(&b);
    }
}

/* c shares a's gradient, but a and b can be distinguished from it: c stays as it is. */
static void siblings_next_to_another(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), wa = graph_test_w(&b, "a", D, D),
                wb = graph_test_w(&b, "b", D, D);
    vector(&b.g, "between", E, INIT_ONES);
    const Value wc = graph_test_w(&b, "c", D, D);
    const Value r = gemm(&b, x, wc), p = gemm(&b, x, wa), q = gemm(&b, x, wb);
    stream_out(&b.g, sum_of_gelus(&b, add(&b.g, p, r), q));
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    graph_test_expect(&b, "next to another",
                      "  F  %5 [6,4] = linear %0 %4\n"
                      "  F  %24 [6,8] = linear %0 %23\n"
                      "  F  %6 [6,4] = part %24 {dim 1 from 0}\n"
                      "  F  %7 [6,4] = part %24 {dim 1 from 4}\n"
                      "  F  %8 [6,4] = add %6 %5\n"
                      "  F  %9 [6,4] = gelu %8\n"
                      "  F  %10 [6,4] = gelu %7\n"
                      "  F  %11 y [6,4] = add %9 %10\n"
                      "  F  %13 [6,4] = gelu_dx %12 %7\n"
                      "  F  %14 [6,4] = gelu_dx %12 %8\n"
                      "  F  %25 [6,8] = join %14 %13 {dim 1}\n"
                      "  F  %26 d.a..2 [8,4] += linear_dw %25 %0 {port 0}\n"
                      "  F  %20 [6,4] = linear_dx %14 %4\n"
                      "  F  %21 d.x [6,4] = linear_dx %25 %23 %20\n"
                      "  F  %22 d.c [4,4] += linear_dw %14 %0 {port 3}\n");
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings),
        cmocka_unit_test(siblings_forward_alone),
        cmocka_unit_test(siblings_with_bias),
        cmocka_unit_test(gemms_stay_apart),
        cmocka_unit_test(packed_models_stay_eager),
        cmocka_unit_test(siblings_next_to_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
