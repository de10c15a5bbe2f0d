/* test_pass_epilogues_gated.c -- epilogues of a gated layer: the gradient of swiglu is fused
 * into the GEMM before it, if that GEMM has no other reader and no sum over ranks comes between;
 * with everything kept or recomputed, sharded over ranks, with backward as one phase and as two. */
#include "place_test.h"

/* y = x + down swiglu(gate n, up n), n the norm of x */
static void build(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), wg = graph_test_w(b, "gate", F, D),
                wu = graph_test_w(b, "up", F, D);
    const Value n = rmsnorm(g, x, vector(g, "norm", D, INIT_ONES), 1e-5);
    const Value gate = graph_name(g, linear(g, n, wg, NO_VALUE), "a");
    const Value up = graph_name(g, linear(g, n, wu, NO_VALUE), "b");
    const Value h = graph_name(g, swiglu(g, gate, up), "h");
    stream_out(g, add(g, x, linear(g, h, graph_test_w(b, "down", D, F), NO_VALUE)));
}

static void after(GraphTest *b, Recompute how)
{
    build(b);
    graph_test_prepare(b, true);
    DO(fuse(&b->g));
    DO(recompute(&b->g, &(CompileOptions){.recompute = how}));
    DO(epilogues(&b->g));
    DO(phases(&b->g));
}

static void recompute_none(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, RECOMPUTE_NONE);
    graph_test_expect(&b, "none",
                      "  F  %4 [6,4], %5 [6] = rmsnorm %0 %3 {eps 1e-05}\n"
                      "  F  %26 [6,10] = linear %4 %25\n"
                      "  F  %6 a [6,5] = part %26 {dim 1 from 0}\n"
                      "  F  %7 b [6,5] = part %26 {dim 1 from 5}\n"
                      "  F  %8 h [6,5] = swiglu %6 %7\n"
                      "  F  %11 y [6,4] = linear_add %8 %9 %0\n"
                      "  W  %14 d.down [4,5] += linear_dw %12 %8 {port 3}\n"
                      "  I  %15 d.a [6,5], %16 d.b [6,5] = linear_dswiglu %12 %9 %6 %7\n"
                      "  I  %27 [6,10] = join %15 %16 {dim 1}\n"
                      "  I  %20 [6,4] = linear_dx %27 %25\n"
                      "  W  %28 d.gate..2 [10,4] += linear_dw %27 %4 {port 0}\n"
                      "  I  %23 d.x [6,4] = rmsnorm_dx %20 %0 %3 %5 %12\n"
                      "  W  %24 d.norm [4] += rmsnorm_dw %20 %0 %5 {port 2}\n");
    graph_test_close(&b);
}

/* h is recomputed from the kept gate and up, which its gradient reads too. */
static void recompute_cheap(void **state)
{
    GraphTest b;
    Program p;
    (void)state;
    after(&b, RECOMPUTE_SELECTIVE);
    const Node *d = graph_test_node(&b, "d.a"), *recomputed = graph_test_node(&b, "h'");
    assert_int_equal(d->op, OP_linear_dswiglu);
    assert_int_equal(d->phase, PHASE_I);
    assert_int_equal(recomputed->op, OP_swiglu);
    for (int k = 0; k < 2; k++) assert_int_equal(d->in[2 + k], recomputed->in[k]);
    DO(lower(&b.g, &b.arena, &p));
    assert_int_equal(p.bytes[REGION_FRAME_W], align_up(T * 2 * F * 8)); /* gate and up */
    assert_int_equal(p.bytes[REGION_FRAME_I], 0);
    graph_test_close(&b);
}

/* Recomputed in I, gate and up are read there. */
static void recompute_all(void **state)
{
    GraphTest b;
    (void)state;
    after(&b, RECOMPUTE_FULL);
    const Node *d = graph_test_node(&b, "d.a");
    assert_int_equal(d->op, OP_linear_dswiglu);
    assert_ptr_equal(d, graph_test_node(&b, "d.b"));
    assert_int_equal(d->in[2], graph_test_node(&b, "a'")->out[0]);
    assert_int_equal(d->in[3], graph_test_node(&b, "b'")->out[0]);
    assert_int_equal(graph_test_node(&b, "a'")->phase, PHASE_I);
    graph_test_close(&b);
}

/* Its outputs overwrite none of its inputs: every element of the GEMM operands is needed, and gate
 * and up after the GEMM has been stored. Here both die with it, and no other GEMM joins them. */
static void over_nothing(void **state)
{
    const CompileOptions o = {.recompute = RECOMPUTE_NAMED, .recompute_names = "a,b"};
    GraphTest b;
    Program p;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), wg = graph_test_w(&b, "gate", F, D),
                down = graph_test_w(&b, "down", D, F);
    const Value wu = graph_test_w(&b, "up", F, D); /* not adjacent to gate */
    const Value gate = graph_name(g, linear(g, x, wg, NO_VALUE), "a");
    const Value up = graph_name(g, linear(g, x, wu, NO_VALUE), "b");
    stream_out(g, linear(g, swiglu(g, gate, up), down, NO_VALUE));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    DO(recompute(g, &o));
    DO(epilogues(g));
    DO(phases(g));
    DO(lower(g, &b.arena, &p));
    const Node *d = graph_test_node(&b, "d.a");
    assert_int_equal(d->op, OP_linear_dswiglu);
    for (int k = 0; k < d->n_in * d->n_out; k++)
        assert_int_not_equal(p.tensor[d->out[k % 2]].view_of, p.tensor[d->in[k / 2]].view_of);
    graph_test_close(&b);
}

static void expect_apart(GraphTest *b)
{
    DO(recompute(&b->g, &(CompileOptions){.recompute = RECOMPUTE_NONE}));
    DO(epilogues(&b->g));
    assert_int_equal(count_nodes(&b->g, OP_linear_dswiglu), 0);
    assert_int_equal(count_nodes(&b->g, OP_swiglu_dx), 1);
    graph_test_close(b);
}

/* The gradient of h, which has another reader, exists. */
static void gradient_that_others_read(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    graph_test_prepare(&b, true);
    DO(fuse(&b.g));
    assert_true(cast(&b.g, graph_test_node(&b, "d.a")->in[0], F32) != NO_VALUE);
    expect_apart(&b);
}

/* h is read by two GEMMs: the second adds to the gradient of the first. */
static void gemm_that_adds(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), wg = graph_test_w(&b, "gate", F, D),
                wu = graph_test_w(&b, "up", F, D);
    const Value gate = linear(g, x, wg, NO_VALUE), up = linear(g, x, wu, NO_VALUE);
    const Value h = graph_name(g, swiglu(g, gate, up), "h");
    const Value one = gelu(g, linear(g, h, graph_test_w(&b, "one", D, F), NO_VALUE));
    stream_out(g, add(g, one, linear(g, h, graph_test_w(&b, "two", D, F), NO_VALUE)));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    assert_int_equal(graph_test_node(&b, "d.h")->op, OP_linear_dx);
    assert_int_equal(graph_test_node(&b, "d.h")->n_in, 3);
    expect_apart(&b);
}

/* No GEMM makes the gradient of h: it is an input of the unit. */
static void no_gemm(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), wg = graph_test_w(&b, "gate", D, D),
                wu = graph_test_w(&b, "up", D, D);
    stream_out(g, swiglu(g, linear(g, x, wg, NO_VALUE), linear(g, x, wu, NO_VALUE)));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    expect_apart(&b);
}

/* Both forms of a backward pass have the op `dswiglus` times, on each of tp ranks, else
 * swiglu_dx. */
static void expect_on(int tp, const Strategy *s, int dswiglus)
{
    GraphTest b;
    Ranks r;
    build(&b);
    ranks_open(&r, &b.g, &(CompileOptions){.backward = true, .strategy = s}, tp);
    for (int k = 0; k < tp; k++)
        for (int merged = 0; merged < 2; merged++) {
            const Phase phase = merged ? PHASE_B : PHASE_I;
            assert_int_equal(count_instr(&r.program[k], phase, OP_linear_dswiglu), dswiglus);
            assert_int_equal(count_instr(&r.program[k], phase, OP_swiglu_dx), 1 - dswiglus);
        }
    ranks_close(&r);
    graph_test_close(&b);
}

/* If h is sharded, each rank makes its part of h's gradient. If down is sharded along its output,
 * that gradient is a sum over ranks, and no GEMM has all of it. */
static void over_ranks(void **state)
{
    static const StrategyRow inner[] = {
        {"gate", "tp", 0, BY_ONE}, {"up", "tp", 0, BY_ONE}, {"down", "tp", 1, BY_ONE}};
    static const StrategyRow outer[] = {{"down", "tp", 0, BY_ONE}};
    const Strategy parts = {.name = "inner", .row = inner, .n = 3};
    const Strategy sums = {.name = "outer", .row = outer, .n = 1};
    (void)state;
    for (int tp = 1; tp <= 3; tp++) expect_on(tp, &parts, 1);
    for (int tp = 2; tp <= 3; tp++) expect_on(tp, &sums, 0);
    expect_on(1, &sums, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recompute_none), cmocka_unit_test(recompute_cheap),
        cmocka_unit_test(recompute_all),  cmocka_unit_test(over_nothing),
        cmocka_unit_test(gemm_that_adds), cmocka_unit_test(gradient_that_others_read),
        cmocka_unit_test(no_gemm),        cmocka_unit_test(over_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
