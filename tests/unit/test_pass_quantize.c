/* test_pass_quantize.c -- the GEMMs that run in FP8, what they read, and what F keeps for the
 * backward phases. */
#include "support/graph_test.h"

#include "base/fp8.h"
#include "support/models.h"

static int count(const Graph *g, OpId op)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == op;
    return n;
}

/* y = x + b(gelu(a(x))): two GEMMs, of which patterns choose. */
static void build_with(GraphTest *b, bool marks)
{
    graph_test_open(b, "u");
    b->g.dtype = BF16;
    if (marks)
        (void)graph_param(&b->g, (ParamInfo){.name = "fp8.marks",
                                             .ndim = 1,
                                             .n = {FP8_SITES * FP8_BINS},
                                             .rule = PARAM_BY_MARKS});
    const Value x = graph_test_x(b);
    const Value h = gelu(&b->g, linear(&b->g, x, graph_test_w(b, "a.weight", F, D), NO_VALUE));
    stream_out(&b->g, linear(&b->g, h, graph_test_w(b, "b.weight", D, F), NO_VALUE));
    DO(graph_err(&b->g));
    DO(differentiate(&b->g));
}

static void build(GraphTest *b) { build_with(b, false); }

static CompileOptions choosing(const char *names, Scaling scaling)
{
    return (CompileOptions){
        .fp8 = {.names = names, .compute = E4M3, .gradient = E5M2, .scaling = scaling}};
}

static void patterns_choose(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    const CompileOptions some = choosing("b.*", SCALING_TENSOR);
    DO(quantize(&b.g, &some));
    graph_test_expect(&b, "b.weight",
                      "  F  %2 [6,5] = linear %0 %1\n"
                      "  F  %3 [6,5] = gelu %2\n"
                      "  F  %12 [1] f32 = amax %3\n"
                      "  F  %13 [6,5] e4m3, %14 [1] f32 = quantize %3 %12\n"
                      "  F  %15 [1] f32 = amax %4\n"
                      "  F  %16 b.weight.fp8 [4,5] e4m3, %17 [1] f32 = quantize %4 %15\n"
                      "  F  %5 y [6,4] = linear_fp8 %13 %16 %14 %17\n"
                      "  F  %18 [1] f32 = amax %6\n"
                      "  F  %19 d.y.fp8 [6,4] e5m2, %20 [1] f32 = quantize %6 %18\n"
                      "  F' %21 [5,4] e4m3, %22 [1] f32 = quantize_turned %4 %15\n"
                      "  F  %7 [6,5] = linear_fp8_dx %19 %21 %20 %22\n"
                      "  F  %23 d.y.fp8.t [4,6] e5m2, %24 [1] f32 = quantize_turned %6 %18\n"
                      "  F  %25 [5,6] e4m3, %26 [1] f32 = quantize_turned %3 %12\n"
                      "  F  %8 d.b.weight [4,5] f32 += linear_fp8_dw %23 %25 %24 %26 {port 1}\n"
                      "  F  %9 [6,5] = gelu_dx %7 %2\n"
                      "  F  %10 d.x [6,4] = linear_dx %9 %1\n"
                      "  F  %11 d.a.weight [5,4] f32 += linear_dw %9 %0 {port 0}\n");
    graph_test_close(&b);
}

/* A coded weight is an operand itself; its transposed copy is made of codes, in backward. */
static void coded_weights_are_read_as_codes(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    CompileOptions some = choosing("b.*", SCALING_TENSOR);
    assert_int_equal(quantize_coded(&b.g, &(Fp8Options){.names = "b.*"}), 2);
    assert_int_equal(quantize_coded(&b.g, &(Fp8Options){.names = "*"}), 3);
    assert_int_equal(quantize_coded(&b.g, &(Fp8Options){0}), 0);
    some.fp8.coded = 2;
    DO(quantize(&b.g, &some));
    graph_test_expect(&b, "b.weight",
                      "  F  %2 [6,5] = linear %0 %1\n"
                      "  F  %3 [6,5] = gelu %2\n"
                      "  F  %12 [1] f32 = amax %3\n"
                      "  F  %13 [6,5] e4m3, %14 [1] f32 = quantize %3 %12\n"
                      "  F  %5 y [6,4] = linear_fp8 %13 %4 %14 %15\n"
                      "  F  %16 [1] f32 = amax %6\n"
                      "  F  %17 d.y.fp8 [6,4] e5m2, %18 [1] f32 = quantize %6 %16\n"
                      "  F' %19 [5,4] e4m3 = turn %4\n"
                      "  F  %7 [6,5] = linear_fp8_dx %17 %19 %18 %15\n"
                      "  F  %20 d.y.fp8.t [4,6] e5m2, %21 [1] f32 = quantize_turned %6 %16\n"
                      "  F  %22 [5,6] e4m3, %23 [1] f32 = quantize_turned %3 %12\n"
                      "  F  %8 d.b.weight [4,5] f32 += linear_fp8_dw %20 %22 %21 %23 {port 1}\n"
                      "  F  %9 [6,5] = gelu_dx %7 %2\n"
                      "  F  %10 d.x [6,4] = linear_dx %9 %1\n"
                      "  F  %11 d.a.weight [5,4] f32 += linear_dw %9 %0 {port 0}\n");
    graph_test_close(&b);
}

static void coded_blocks_have_scales(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    CompileOptions all = choosing("*", SCALING_BLOCK);
    all.fp8.coded = 3;
    DO(quantize(&b.g, &all));
    assert_int_equal(count(&b.g, OP_quantize_blocks), 8); /* of activations and gradients */
    assert_int_equal(count(&b.g, OP_turn), 0);
    int scales = 0;
    for (Value v = 0; v < b.g.n_values; v++) scales += b.g.value[v].role == ROLE_SCALE;
    assert_int_equal(scales, 2);
    graph_test_close(&b);
}

static void blocks_have_scales_of_their_own(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    const CompileOptions all = choosing("*", SCALING_BLOCK);
    DO(quantize(&b.g, &all));
    assert_int_equal(count(&b.g, OP_amax), 0);
    assert_int_equal(count(&b.g, OP_linear_blocks), 2);
    assert_int_equal(count(&b.g, OP_linear_blocks_dx), 2);
    assert_int_equal(count(&b.g, OP_linear_blocks_dw), 2);
    /* x and h, d.y and d.h along both dims; the weights in both directions */
    assert_int_equal(count(&b.g, OP_quantize_blocks), 12);
    const Node *y = graph_test_node(&b, "y");
    assert_int_equal(y->attr.kernel.gemm.a_block[0], 1);
    assert_int_equal(y->attr.kernel.gemm.a_block[1], 128);
    assert_int_equal(y->attr.kernel.gemm.b_block[0], 128);
    const Node *dw = graph_test_node(&b, "d.b.weight");
    assert_int_equal(dw->attr.kernel.gemm.a_block[0], 128);
    assert_int_equal(dw->attr.kernel.gemm.b_block[1], 1);
    graph_test_close(&b);
}

/* Four values have sites, two of them gradients; one node makes marks of their amaxes, in W. */
static void marks_give_scales(void **state)
{
    GraphTest b;
    (void)state;
    build_with(&b, true);
    const CompileOptions all = choosing("*", SCALING_DELAYED);
    DO(quantize(&b.g, &all));
    assert_int_equal(count(&b.g, OP_linear_fp8), 2);
    assert_int_equal(count(&b.g, OP_linear_fp8_dx), 2);
    assert_int_equal(count(&b.g, OP_linear_fp8_dw), 2);
    assert_int_equal(count(&b.g, OP_quantize_by), 4);
    assert_int_equal(count(&b.g, OP_quantize_by_turned), 4);
    assert_int_equal(count(&b.g, OP_amax), 2); /* of weights */
    assert_int_equal(count(&b.g, OP_mark_amax), 1);
    for (int i = 0; i < b.g.n_nodes; i++) {
        const Node *n = &b.g.node[i];
        if (n->op == OP_delayed_scales)
            assert_int_equal(__builtin_popcount(n->attr.kernel.sites.gradients), 2);
        if (n->op != OP_mark_amax) continue;
        assert_int_equal(n->n_in, 4);
        assert_int_equal(n->keep[0], SLOT_PORT + b.g.value[n->out[0]].index);
        for (int k = 0; k < n->n_in; k++)
            assert_int_equal(b.g.node[graph_maker(&b.g, n->in[k])].op, OP_quantize_by);
    }
    graph_test_close(&b);
}

/* A norm whose result only GEMMs in FP8 read writes it in 8 bits, with its transposed copy. */
static void makers_write_8_bits(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    b.g.dtype = BF16;
    (void)graph_param(&b.g, (ParamInfo){.name = "fp8.marks",
                                        .ndim = 1,
                                        .n = {FP8_SITES * FP8_BINS},
                                        .rule = PARAM_BY_MARKS});
    const Value x = graph_test_x(&b);
    const Value w = graph_param(&b.g, (ParamInfo){.name = "norm.weight", .ndim = 1, .n = {D}});
    const Value a = rmsnorm(&b.g, x, w, 1e-5);
    stream_out(&b.g, linear(&b.g, a, graph_test_w(&b, "b.weight", D, D), NO_VALUE));
    DO(graph_err(&b.g));
    DO(differentiate(&b.g));
    const CompileOptions all = choosing("*", SCALING_DELAYED);
    DO(quantize(&b.g, &all));
    DO(epilogues(&b.g));
    assert_int_equal(count(&b.g, OP_rmsnorm), 0);
    assert_int_equal(count(&b.g, OP_rmsnorm_by), 1);
    assert_int_equal(count(&b.g, OP_quantize_by), 1); /* d.y */
    assert_int_equal(count(&b.g, OP_quantize_by_turned), 1);
    for (int i = 0; i < b.g.n_nodes; i++)
        if (b.g.node[i].op == OP_rmsnorm_by) assert_int_equal(b.g.node[i].n_out, 4);
    graph_test_close(&b);
}

/* A pattern of a value stores its copy of 8 bits in host memory, which F keeps instead. */
static void copies_are_offloaded(void **state)
{
    GraphTest b;
    int copies = 0;
    (void)state;
    build(&b);
    CompileOptions some = choosing("b.*", SCALING_TENSOR);
    const Node *made = graph_test_node(&b, "y");
    (void)graph_name(&b.g, made->in[0], "hidden");
    some.offload_names = "hidden";
    some.backward = true;
    DO(quantize(&b.g, &some));
    DO(recompute(&b.g, &some));
    for (int i = 0; i < b.g.n_nodes; i++) {
        const Node *n = &b.g.node[i];
        if (n->op != OP_copy_out) continue;
        copies += strcmp(b.g.value[n->in[0]].name, "hidden.fp8.t") == 0 ? 1 : 100;
    }
    assert_int_equal(copies, 1);
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_choose),
        cmocka_unit_test(coded_weights_are_read_as_codes),
        cmocka_unit_test(coded_blocks_have_scales),
        cmocka_unit_test(blocks_have_scales_of_their_own),
        cmocka_unit_test(marks_give_scales),
        cmocka_unit_test(makers_write_8_bits),
        cmocka_unit_test(copies_are_offloaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
