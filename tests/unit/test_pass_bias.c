/* test_pass_bias.c -- the gradient of a bias is computed by the op that reads or makes its dy,
 * if one phase has both (lower). */
#include "place_test.h"

static const Instr *find(const Program *p, Phase phase, OpId op)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (p->instr[i].op == op) return &p->instr[i];
    fail_msg("phase %s has no %s", phase_name(phase), op_info(op)->name);
    return NULL;
}

static Program lowered(GraphTest *b)
{
    Program p;
    graph_test_prepare(b, true);
    DO(fuse(&b->g));
    DO(recompute(&b->g, &(CompileOptions){.recompute = RECOMPUTE_NONE}));
    DO(epilogues(&b->g));
    DO(phases(&b->g));
    DO(lower(&b->g, &b->arena, &p));
    return p;
}

/* norm(x), with parameters `name`.weight and .bias */
static Value normed(Graph *g, Value x, const char *weight, const char *bias)
{
    const Value w = vector(g, weight, D, INIT_ONES);
    return layernorm(g, x, w, vector(g, bias, D, INIT_ZEROS), 1e-5);
}

/* y = x + down gelu(up norm(x) + b) + c: parameters n.w, n.b, up, b, down, c. */
static void build(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), a = normed(g, x, "n.w", "n.b"),
                up = graph_test_w(b, "up", F, D);
    const Value h = gelu(g, linear(g, a, up, vector(g, "b", F, INIT_ZEROS)));
    const Value down = graph_test_w(b, "down", D, F);
    stream_out(g, add(g, x, linear(g, h, down, vector(g, "c", D, INIT_ZEROS))));
}

static double flops_of(const Program *p, Phase phase)
{
    double sum = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) sum += p->instr[i].flops;
    return sum;
}

/* B reads nothing for them; W, which may run much later, does. */
static void sum_joins_its_reader(void **state)
{
    GraphTest b;
    (void)state;
    build(&b);
    const Program p = lowered(&b);
    assert_int_equal(count_instr(&p, PHASE_W, OP_bias_dw), 2);
    assert_int_equal(count_instr(&p, PHASE_I, OP_linear_dgelu), 1);
    assert_int_equal(count_instr(&p, PHASE_I, OP_layernorm_dx), 1);
    assert_int_equal(count_instr(&p, PHASE_B, OP_bias_dw), 0);
    const Instr *norm = find(&p, PHASE_B, OP_layernorm_back_bias);
    assert_int_equal(norm->n_in, 6);
    assert_int_equal(norm->n_out, 4);
    for (int i = 0; i < 2; i++) assert_int_equal(norm->keep[1 + i], SLOT_PORT + i);
    assert_int_equal(norm->keep[3], SLOT_PORT + 5);
    /* dy, x, residual and dx once each; statistics; w; three sums, which are read too */
    assert_int_equal(norm->bytes, 8 * (4 * T * D + 2 * T + D + 2 * 3 * D));
    const Instr *gemm = find(&p, PHASE_B, OP_linear_dgelu_bias);
    assert_int_equal(gemm->n_out, 2);
    assert_int_equal(gemm->keep[0], SLOT_ZERO);
    assert_int_equal(gemm->keep[1], SLOT_PORT + 3);
    assert_int_equal(gemm->bytes, 8 * (T * D + D * F + 2 * T * F + 2 * F));
    assert_true(gemm->heavy_flops == 2.0 * T * D * F);
    assert_true(gemm->flops == 2.0 * T * D * F + 17.0 * T * F);
    assert_true(norm->flops == 18.0 * T * D);
    assert_true(flops_of(&p, PHASE_B) == flops_of(&p, PHASE_I) + flops_of(&p, PHASE_W));
    graph_test_close(&b);
}

/* A bias of two GEMMs has a sum of two terms, in one order: neither moves. */
static void shared(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value c = vector(g, "c", D, INIT_ZEROS), x = graph_test_x(&b);
    const Value up = graph_test_w(&b, "up", D, D), down = graph_test_w(&b, "down", D, D);
    const Value h = gelu(g, linear(g, normed(g, x, "n.w", "n.b"), up, c));
    stream_out(g, add(g, x, linear(g, h, down, c)));
    const Program p = lowered(&b);
    assert_int_equal(count_instr(&p, PHASE_B, OP_bias_dw), 2);
    assert_int_equal(count_instr(&p, PHASE_B, OP_layernorm_back), 1);
    assert_int_equal(count_instr(&p, PHASE_B, OP_linear_dgelu), 1);
    graph_test_close(&b);
}

/* A norm without a residual, or with another one than the bias sums; a gelu that no GEMM makes. */
static void sum_stays_apart(void **state)
{
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        GraphTest b;
        graph_test_open(&b, "u");
        Graph *g = &b.g;
        const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D),
                    c = vector(g, "c", D, INIT_ZEROS);
        const Value a = normed(g, x, "n.w", "n.b");
        const Value y = variant == 2 ? gelu(g, linear(g, a, w, c)) : linear(g, a, w, c);
        stream_out(g, variant == 0 ? y : add(g, x, variant == 1 ? scale(g, y, 3) : y));
        const Program p = lowered(&b);
        assert_int_equal(count_instr(&p, PHASE_B, OP_bias_dw), 1);
        assert_int_equal(count_instr(&p, PHASE_B, OP_layernorm_back), 1);
        graph_test_close(&b);
    }
}

/* Two norms' gradients add themselves to the d.y that a bias sums: one of them computes the sum,
 * once. */
static void two_norms_share_a_sum(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), p = scale(g, x, 2), q = scale(g, x, 3);
    const Value a = add(g, normed(g, p, "m.w", "m.b"), normed(g, q, "n.w", "n.b"));
    const Value w = graph_test_w(&b, "w", D, D), c = vector(g, "c", D, INIT_ZEROS);
    stream_out(g, add(g, add(g, p, q), linear(g, a, w, c)));
    const Program program = lowered(&b);
    assert_int_equal(count_instr(&program, PHASE_I, OP_layernorm_dx), 2);
    assert_int_equal(count_instr(&program, PHASE_W, OP_bias_dw), 1);
    assert_int_equal(count_instr(&program, PHASE_B, OP_layernorm_back_bias), 1);
    assert_int_equal(count_instr(&program, PHASE_B, OP_layernorm_back), 1);
    assert_int_equal(count_instr(&program, PHASE_B, OP_bias_dw), 0);
    graph_test_close(&b);
}

/* A head is F alone: there dx overwrites the residual, which has no other reader; dy has others. */
static void over_residual(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value z = graph_test_x(&b), v = gelu(g, scale(g, z, 2)), x = gelu(g, z);
    const Value a = add(g, normed(g, x, "n.w", "n.b"), v);
    const Value w = graph_test_w(&b, "w", D, D), c = vector(g, "c", D, INIT_ZEROS);
    const Value y = add(g, x, linear(g, a, w, c));
    const Value targets = input(g, INPUT_TARGETS, dim_of(T));
    token_loss(g, y, graph_test_w(&b, "lm_head.weight", F, D), targets,
               input(g, INPUT_WEIGHTS, dim_of(T)));
    const Program p = lowered(&b);
    const Instr *norm = find(&p, PHASE_F, OP_layernorm_back_bias);
    assert_int_equal(p.tensor[norm->in[5]].view_of, p.tensor[norm->out[0]].view_of);
    assert_int_equal(count_instr(&p, PHASE_F, OP_bias_dw), 0);
    graph_test_close(&b);
}

/* A layer of gpt2, on each of tp ranks. */
typedef struct {
    int tp;
    bool sequence;
    CompileOptions options;
    int norms, gemms, left; /* biases computed by norms, by GEMMs, by themselves */
} Where;

static void expect_where(const Where *w)
{
    ModelBed m;
    Ranks r;
    model_bed_open(&m, test_model("gpt2"));
    CompileOptions o = w->options;
    o.strategy = w->sequence ? &m.sequence : &m.plain;
    o.backward = true;
    ranks_open(&r, &m.model.kind[1], &o, w->tp);
    for (int k = 0; k < w->tp; k++) {
        const Program *p = &r.program[k];
        assert_int_equal(count_instr(p, PHASE_B, OP_layernorm_back_bias), w->norms);
        assert_int_equal(count_instr(p, PHASE_B, OP_linear_dgelu_bias), w->gemms);
        assert_int_equal(count_instr(p, PHASE_B, OP_bias_dw), w->left);
        assert_int_equal(count_instr(p, PHASE_W, OP_bias_dw), w->norms + w->gemms + w->left);
        assert_true(flops_of(p, PHASE_B) == flops_of(p, PHASE_I) + flops_of(p, PHASE_W));
    }
    ranks_close(&r);
    model_bed_close(&m);
}

static void whole_layers(void **state)
{
    static const Where where[] = {
        {1, false, {.recompute = RECOMPUTE_NONE}, 2, 1, 1},
        {1, false, {.recompute = RECOMPUTE_FULL}, 2, 1, 1},
        {1, true, {.slice_rows = 5}, 2, 1, 1},
        {2, false, {.recompute = RECOMPUTE_SELECTIVE}, 2, 1, 1},
        {2, true, {.recompute = RECOMPUTE_NONE}, 2, 1, 1},
        {3, true, {.recompute = RECOMPUTE_FULL}, 2, 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) expect_where(&where[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_joins_its_reader), cmocka_unit_test(shared),
        cmocka_unit_test(sum_stays_apart),      cmocka_unit_test(over_residual),
        cmocka_unit_test(whole_layers),         cmocka_unit_test(two_norms_share_a_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
