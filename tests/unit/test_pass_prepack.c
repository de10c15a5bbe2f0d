/* test_pass_prepack.c -- prepack: the GEMMs that share a prepacked weight, and those that do
 * not. */
#include "support/graph_test.h"

/* The bytes identify the depth of the GEMM. */
static size_t bytes_of(DType dtype, int64_t k, int64_t n)
{
    return dtype_bytes(dtype) * (size_t)(100 * k + n);
}

static const DevicePrepack device = {.bytes = bytes_of};

static Program prepacked(GraphTest *b, bool back)
{
    Program p;
    graph_test_prepare(b, back);
    DO(recompute(&b->g, &(CompileOptions){.recompute = RECOMPUTE_NONE}));
    DO(phases(&b->g));
    DO(lower(&b->g, &b->arena, &p));
    DO(prepack(&device, &b->arena, &p));
    return p;
}

/* The index of the weight that the GEMM which makes this value reads, from 0, or -1. */
static int number_of(const Program *p, Phase phase, Value made)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (p->instr[i].out[0] == made) return p->instr[i].prepacked - 1;
    fail_msg("phase %s makes no %%%d", phase_name(phase), made);
    return -1;
}

/* x W^T and dy W read one weight in two orders; B has the order of I. The sum of dw reads none. */
static void two_orders(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value y = linear(&b.g, graph_test_x(&b), graph_test_w(&b, "w", F, D), NO_VALUE);
    stream_out(&b.g, linear(&b.g, y, graph_test_w(&b, "v", D, F), NO_VALUE));
    const Program p = prepacked(&b, true);
    int with = 0;
    for (int i = 0; i < p.n_instr; i++) {
        const bool reads = p.instr[i].op == OP_linear || p.instr[i].op == OP_linear_dx;
        assert_int_equal(p.instr[i].prepacked > 0, reads);
        with += reads;
    }
    assert_int_equal(with, 6); /* two in F, in I and in B */
    assert_int_equal(p.n_prepacked, 4);
    assert_int_equal(number_of(&p, PHASE_F, y), 0);
    assert_true(p.prepacked[0].tb);
    assert_int_equal(p.prepacked[0].bytes, bytes_of(F64, D, F));
    graph_test_close(&b);
}

/* Parts of one parameter of the same shape are two weights; the same part, shown twice, is one. */
static void parts_of_one(void **state)
{
    GraphTest b;
    Value y[3];
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", 2 * F, D);
    static const int64_t from[] = {0, F, 0};
    for (int i = 0; i < 3; i++) y[i] = linear(g, x, part(g, w, 0, from[i], dim_of(F)), NO_VALUE);
    const Value sum = add(g, gelu(g, y[0]), add(g, y[1], scale(g, y[2], 3)));
    stream_out(g, linear(g, sum, graph_test_w(&b, "v", D, F), NO_VALUE));
    const Program p = prepacked(&b, false);
    assert_int_equal(p.n_prepacked, 3);
    assert_int_equal(number_of(&p, PHASE_F, y[0]), 0);
    assert_int_equal(number_of(&p, PHASE_F, y[1]), 1);
    assert_int_equal(number_of(&p, PHASE_F, y[2]), 0);
    graph_test_close(&b);
}

static void too_many(void **state)
{
    GraphTest b;
    Program p;
    (void)state;
    graph_test_open(&b, "deep");
    Value y = graph_test_x(&b);
    const Value w = graph_test_w(&b, "w", (MAX_PREPACKED + 1) * D, D);
    for (int i = 0; i <= MAX_PREPACKED; i++)
        y = linear(&b.g, y, part(&b.g, w, 0, i * D, dim_of(D)), NO_VALUE);
    stream_out(&b.g, y);
    graph_test_prepare(&b, false);
    DO(phases(&b.g));
    DO(lower(&b.g, &b.arena, &p));
    expect_error("too many", prepack(&device, &b.arena, &p), ERR_CONFIG,
                 "unit deep has 65 prepacked weights, at most 64");
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_orders),
        cmocka_unit_test(parts_of_one),
        cmocka_unit_test(too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
