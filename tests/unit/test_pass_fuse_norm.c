/* test_pass_fuse_norm.c -- a norm's gradient takes the residual that it is added to (fuse), and
 * computes dx and dw in one instruction if one phase has both (lower). */
#include "place_units.h"

/* y = x + w norm(x): a residual, as layers have two. */
static void build_residual(GraphTest *b, bool layer)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), n = vector(g, "norm.weight", D, INIT_ONES);
    const Value shift = layer ? vector(g, "norm.bias", D, INIT_ZEROS) : NO_VALUE;
    const Value a = layer ? layernorm(g, x, n, shift, 1e-5) : rmsnorm(g, x, n, 1e-5);
    stream_out(g, add(g, x, linear(g, a, graph_test_w(b, "w", D, D), NO_VALUE)));
}

static int count(const Graph *g, OpId op)
{
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == op;
    return n;
}

static void sum_into_norm(void **state)
{
    GraphTest b;
    (void)state;
    build_residual(&b, true);
    graph_test_prepare(&b, true);
    const int adds = count(&b.g, OP_add);
    DO(fuse(&b.g));
    assert_int_equal(count(&b.g, OP_add), adds - 1); /* the forward one is left */
    const Node *dx = graph_test_node(&b, "d.x");
    assert_int_equal(dx->op, OP_layernorm_dx);
    assert_int_equal(dx->n_in, 6);
    /* dy stays as it is: it has other readers. */
    assert_int_equal(b.g.value[dx->in[5]].role, ROLE_DY);
    graph_test_close(&b);
}

/* Values with other readers stay, and are added to by themselves. */
static void sum_stays_apart(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), n = vector(g, "norm.weight", D, INIT_ONES);
    const Value sum =
        add(g, x, gelu(g, x)); /* d.sum is a term of d.x, and gelu's gradient reads it */
    stream_out(g, rmsnorm(g, sum, n, 1e-5));
    graph_test_prepare(&b, true);
    DO(fuse(g));
    assert_int_equal(graph_test_node(&b, "d.x")->op, OP_add);
    assert_int_equal(count(g, OP_rmsnorm_dx), 1);
    graph_test_close(&b);
    graph_test_open(&b, "u");
    const Value z = graph_test_x(&b), w = vector(g, "norm.weight", D, INIT_ONES);
    stream_out(g, rmsnorm(g, z, w, 1e-5)); /* no residual */
    graph_test_prepare(&b, true);
    DO(fuse(g));
    assert_int_equal(graph_test_node(&b, "d.x")->n_in, 4);
    graph_test_close(&b);
}

static Program lowered(GraphTest *b)
{
    Program p;
    graph_test_prepare(b, true);
    DO(fuse(&b->g));
    DO(phases(&b->g));
    DO(lower(&b->g, &b->arena, &p));
    return p;
}

/* B has one instruction; I and W, which may run far apart, have one each, and sums are W's. */
static void dx_and_dw_in_one_phase(void **state)
{
    (void)state;
    for (int layer = 0; layer < 2; layer++) {
        GraphTest b;
        build_residual(&b, layer);
        const Program p = lowered(&b);
        const OpId dx = layer ? OP_layernorm_dx : OP_rmsnorm_dx;
        const OpId dw = layer ? OP_layernorm_dw : OP_rmsnorm_dw;
        const OpId both = layer ? OP_layernorm_back : OP_rmsnorm_back;
        assert_int_equal(count_instr(&p, PHASE_I, dx), 1);
        assert_int_equal(count_instr(&p, PHASE_I, both), 0);
        assert_int_equal(count_instr(&p, PHASE_W, dw), 1);
        assert_int_equal(count_instr(&p, PHASE_B, dx) + count_instr(&p, PHASE_B, dw), 0);
        assert_int_equal(count_instr(&p, PHASE_B, both), 1);
        for (int i = 0; i < p.n_out; i++) assert_int_equal(p.out[i].phase, PHASE_W);
        for (int i = p.first[PHASE_B]; i < p.first[PHASE_B + 1]; i++) {
            const Instr *in = &p.instr[i];
            if (in->op != both) continue;
            assert_int_equal(in->n_in, layer ? 6 : 5);
            assert_int_equal(in->n_out, layer ? 3 : 2);
            assert_int_equal(in->keep[0], SLOT_ZERO);
            assert_int_equal(in->keep[1], SLOT_PORT); /* of the norm's weight, parameter 0 */
            if (layer) assert_int_equal(in->keep[2], SLOT_PORT + 1);
            /* dy, x, residual and dx once each, statistics, w; sums twice: they are read too */
            const size_t wide = 4 * T * D * 8, stats = (layer ? 2 : 1) * T * 8;
            assert_int_equal(in->bytes, wide + stats + D * 8 + (layer ? 4 : 2) * D * 8);
        }
        graph_test_close(&b);
    }
}

/* A head is F alone: there dx overwrites dy, which is dead. */
static void over_dy(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = gelu(g, graph_test_x(&b)), n = vector(g, "norm.weight", D, INIT_ONES);
    const Value a = gelu(g, rmsnorm(g, x, n, 1e-5));
    const Value targets = input(g, INPUT_TARGETS, dim_of(T));
    token_loss(g, a, graph_test_w(&b, "lm_head.weight", F, D), targets,
               input(g, INPUT_WEIGHTS, dim_of(T)));
    const Program p = lowered(&b);
    assert_int_equal(count_instr(&p, PHASE_F, OP_rmsnorm_back), 1);
    for (int i = p.first[PHASE_F]; i < p.first[PHASE_F + 1]; i++) {
        const Instr *in = &p.instr[i];
        if (in->op != OP_rmsnorm_back) continue;
        assert_int_equal(p.tensor[in->in[0]].view_of, p.tensor[in->out[0]].view_of);
    }
    graph_test_close(&b);
}

/* A weight that two norms share has a sum of two terms, in one order in all phases: none moves. */
static void shared_weight(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    Graph *g = &b.g;
    const Value x = graph_test_x(&b), n = vector(g, "norm.weight", D, INIT_ONES);
    stream_out(g, rmsnorm(g, gelu(g, rmsnorm(g, x, n, 1e-5)), n, 1e-5));
    const Program p = lowered(&b);
    assert_int_equal(count_instr(&p, PHASE_B, OP_rmsnorm_back), 0);
    assert_int_equal(count_instr(&p, PHASE_B, OP_rmsnorm_dw), 2);
    graph_test_close(&b);
}

typedef struct {
    const char *name;
    int residual, back; /* residuals fused into norms; instructions of B that compute both */
} Layer;

/* Layers of whole models, on one rank and sharded: every residual's sum is fused into its norm. */
static void layers(void **state)
{
    static const Layer row[] = {{"gpt2", 2, 2}, {"llama", 2, 2}, {"qwen3", 2, 4}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int variant = 0; variant < 6; variant++) {
            Arena arena;
            Model m;
            Program p;
            int residual = 0, back = 0;
            DO(arena_open(&arena, "layers", (size_t)1 << 30));
            const ModelConfig *c = test_model(row[i].name);
            DO(model_build(c, F64, (BatchShape){1, T}, &arena, &m));
            const Strategy strategy =
                strategy_with_heads(variant % 2 ? &strategy_tp_sequence : &strategy_tp, c->n_heads,
                                    c->n_kv_heads, c->head_size);
            const Mesh mesh = mesh_tp(variant < 2 ? 1 : 2);
            const CompileOptions o = {.strategy = &strategy,
                                      .mesh = &mesh,
                                      .backward = true,
                                      .slice_rows = variant == 0 ? 3 : 0,
                                      .recompute = variant > 3 ? RECOMPUTE_FULL : RECOMPUTE_NONE};
            DO(compile_unit(&m.kind[1], &o, NULL, NULL, &arena, &p));
            for (int k = p.first[PHASE_B]; k < p.first[PHASE_B + 1]; k++) {
                const OpId op = p.instr[k].op;
                const bool layer = op == OP_layernorm_back || op == OP_layernorm_back_bias;
                const int full = layer ? 6 : 5;
                if (!layer && op != OP_rmsnorm_back && op != OP_headnorm_back) continue;
                back++;
                residual += p.instr[k].n_in == full;
            }
            assert_int_equal(residual, row[i].residual);
            assert_int_equal(back, row[i].back);
            arena_close(&arena);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_into_norm),          cmocka_unit_test(sum_stays_apart),
        cmocka_unit_test(dx_and_dw_in_one_phase), cmocka_unit_test(over_dy),
        cmocka_unit_test(shared_weight),          cmocka_unit_test(layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
