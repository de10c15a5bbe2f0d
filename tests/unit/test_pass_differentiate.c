/* test_pass_differentiate.c -- differentiate, before and after; and place, which on one rank
 * inserts nothing, finds the pins of the strategies on a mesh, and refuses unsupported cases. */
#include "support/graph_test.h"

#include "model/config.h"

static void a_block(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "up", F, D);
    const Value bias = vector(&b.g, "bias", F, INIT_ZEROS), down = graph_test_w(&b, "down", D, F);
    const Value a = gelu(&b.g, linear(&b.g, x, w, bias));
    stream_out(&b.g, add(&b.g, x, linear(&b.g, a, down, NO_VALUE)));
    graph_test_expect(&b, "before",
                      "  F  %4 [6,5] = linear %0 %1 %2\n"
                      "  F  %5 [6,5] = gelu %4\n"
                      "  F  %6 [6,4] = linear %5 %3\n"
                      "  F  %7 y [6,4] = add %0 %6\n");
    DO(differentiate(&b.g));
    graph_test_expect_all(&b, "after",
                          "u, f64\n"
                          "  %0 x [6,4]: stream from the unit before\n"
                          "  %1 up [5,4]: parameter 0\n"
                          "  %2 bias [5]: parameter 1\n"
                          "  %3 down [4,5]: parameter 2\n"
                          "  %8 d.y [6,4]: gradient from the unit after\n"
                          "  F  %4 [6,5] = linear %0 %1 %2\n"
                          "  F  %5 [6,5] = gelu %4\n"
                          "  F  %6 [6,4] = linear %5 %3\n"
                          "  F  %7 y [6,4] = add %0 %6\n"
                          "  F  %9 [6,5] = linear_dx %8 %3\n"
                          "  F  %10 d.down [4,5] += linear_dw %8 %5 {port 2}\n"
                          "  F  %11 [6,5] = gelu_dx %9 %4\n"
                          "  F  %12 [6,4] = linear_dx %11 %1\n"
                          "  F  %13 d.x [6,4] = add %8 %12\n"
                          "  F  %14 d.up [5,4] += linear_dw %11 %0 {port 0}\n"
                          "  F  %15 d.bias [5] += bias_dw %11 {port 1}\n");
    assert_int_equal(b.g.value[13].role, ROLE_DX);
    assert_int_equal(b.g.value[10].role, ROLE_DPARAM);
    graph_test_close(&b);
}

/* The second use of a weight adds to the gradient of the first. */
static void a_weight_twice(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "w", D, D);
    stream_out(&b.g, linear(&b.g, linear(&b.g, x, w, NO_VALUE), w, NO_VALUE));
    DO(differentiate(&b.g));
    graph_test_expect(&b, "w twice",
                      "  F  %2 [6,4] = linear %0 %1\n"
                      "  F  %3 y [6,4] = linear %2 %1\n"
                      "  F  %5 [6,4] = linear_dx %4 %1\n"
                      "  F  %6 d.w [4,4] += linear_dw %4 %2 {port 0}\n"
                      "  F  %7 d.x [6,4] = linear_dx %5 %1\n"
                      "  F  %6 d.w [4,4] += linear_dw %5 %0\n");
    assert_int_equal(b.g.node[3].keep[0], SLOT_PORT);
    assert_int_equal(b.g.node[5].keep[0], SLOT_ONE);
    graph_test_close(&b);
}

static void a_value_twice(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b);
    stream_out(&b.g, add(&b.g, x, x));
    DO(differentiate(&b.g));
    graph_test_expect(&b, "x twice",
                      "  F  %1 y [6,4] = add %0 %0\n"
                      "  F  %3 d.x [6,4] = add %2 %2\n");
    graph_test_close(&b);
}

/* Tokens are integers and have no gradient; a unit without x has no dx. */
static void an_embedding(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "embed");
    const Value w = graph_test_w(&b, "wte", 9, D);
    stream_out(&b.g, embedding(&b.g, input(&b.g, INPUT_TOKENS, dim_of(T)), w));
    DO(differentiate(&b.g));
    graph_test_expect(&b, "embed",
                      "  F  %2 y [6,4] = embedding %1 %0\n"
                      "  F  %4 d.wte [9,4] += embedding_dw %3 %1 {port 0}\n");
    graph_test_close(&b);
}

/* A loss needs no dy, and all nodes that it runs in chunks have one number, gradients too. */
static void a_head(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "head");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "v", 9, D);
    const Value targets = input(&b.g, INPUT_TARGETS, dim_of(T));
    token_loss(&b.g, x, w, targets, input(&b.g, INPUT_WEIGHTS, dim_of(T)));
    DO(differentiate(&b.g));
    graph_test_expect(&b, "head",
                      "  F  %4 logits [6,9] = linear %0 %1 chunk 1\n"
                      "  F  %5 logits.max [6] = row_max %4 chunk 1\n"
                      "  F  %6 logits.sums [6,2] = row_sums %4 %5 %2 chunk 1\n"
                      "  F  %7 loss [1] += loss %6 %3 chunk 1\n"
                      "  F  %8 d.logits [6,9] = loss_dx %4 %5 %6 %2 %3 chunk 1\n"
                      "  F  %9 d.x [6,4] = linear_dx %8 %1 chunk 1\n"
                      "  F  %10 d.v [9,4] += linear_dw %8 %0 {port 0} chunk 1\n");
    graph_test_close(&b);
}

static void x_must_reach_y(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    graph_test_x(&b);
    const Value w = graph_test_w(&b, "w", 9, D);
    stream_out(&b.g, embedding(&b.g, input(&b.g, INPUT_TOKENS, dim_of(T)), w));
    expect_error("cut off", differentiate(&b.g), ERR_CHECK, "graph u: x does not reach the output");
    graph_test_close(&b);
}

/* One rank: every pin is replicate, and the graph stays as it was. */
static void one_rank_inserts_nothing(void **state)
{
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    const Value x = graph_test_x(&b), w = graph_test_w(&b, "mlp.up_proj.weight", F, D);
    const Value down = graph_test_w(&b, "mlp.down_proj.weight", D, F);
    stream_out(&b.g, linear(&b.g, linear(&b.g, x, w, NO_VALUE), down, NO_VALUE));
    DO(differentiate(&b.g));
    const int n_nodes = b.g.n_nodes, n_values = b.g.n_values;
    DO(place(&b.g, &(CompileOptions){.strategy = &strategy_tp_sequence, .mesh = &b.mesh}));
    assert_int_equal(b.g.n_nodes, n_nodes);
    assert_int_equal(b.g.n_values, n_values);
    for (Value v = 0; v < n_values; v++) assert_true(layout_is_replicate(&b.g.value[v].layout));
    graph_test_close(&b);
}

static Mesh mesh_of_two(void)
{
    const View views[] = {{4, {1, 1, 1, 2}, {"pp", "dp", "cp", "tp"}}};
    Mesh m;
    DO(mesh_init(&m, 2, views, 1));
    return m;
}

/* The pins of a layer by each strategy, on tp=2. "-": the value is pinned to replicate. */
typedef struct {
    const char *name, *tp, *sequence; /* NULL: not pinned */
} Pin;

static void expect_pins(Graph *g, const ModelConfig *c, Arena *arena, const Pin *want, int n)
{
    const Mesh mesh = mesh_of_two();
    for (int i = 0; i < 2 * n; i++) {
        const Strategy with = strategy_with_heads(i < n ? &strategy_tp : &strategy_tp_sequence,
                                                  c->n_heads, c->n_kv_heads, c->head_size);
        const Strategy *s = &with;
        const char *layout = i < n ? want[i].tp : want[i - n].sequence;
        const char *name = want[i % n].name, *got;
        Layout *pin;
        unsigned *pinned;
        Value v = 0;
        DO(strategy_pins(s, g, &mesh, arena, &pin, &pinned));
        while (v < g->n_values && strcmp(g->value[v].name, name) != 0) v++;
        if (v == g->n_values) fail_msg("no value %s", name);
        Text t = text_in(arena);
        layout_text(&t, &pin[v], &mesh);
        DO(text_done(&t, &got));
        if ((pinned[v] >> 3 & 1) != (layout != NULL)) /* tp */
            fail_msg("%s: %s: pinned 0x%x", s->name, name, pinned[v]);
        if (strcmp(got, layout ? layout : "replicate") != 0)
            fail_msg("%s: %s is %s", s->name, name, got);
    }
}

#define CUT0 "shard(0) on tp"
#define CUT1 "shard(1) on tp"
#define HEADS0 "shard(0 by 16) on tp"
#define HEADS1 "shard(1 by 16) on tp"

static const Pin llama_layer[] = {
    {"x", "replicate", CUT0},
    {"y", "replicate", CUT0},
    {"d.x", "replicate", CUT0},
    {"d.y", "replicate", CUT0},
    {"mid", NULL, CUT0},
    {"attn.in", NULL, CUT0},
    {"input_layernorm.weight", "replicate", "replicate"},
    {"self_attn.q_proj.weight", HEADS0, HEADS0},
    {"self_attn.k_proj.weight", HEADS0, HEADS0},
    {"self_attn.v_proj.weight", HEADS0, HEADS0},
    {"self_attn.o_proj.weight", HEADS1, HEADS1},
    {"mlp.gate_proj.weight", CUT0, CUT0},
    {"mlp.up_proj.weight", CUT0, CUT0},
    {"mlp.down_proj.weight", CUT1, CUT1},
    {"d.self_attn.q_proj.weight", NULL, NULL},
    {"d.mlp.down_proj.weight", NULL, NULL},
};
static const Pin gpt2_layer[] = {
    {"x", "replicate", CUT0},
    {"attn.q_proj.bias", HEADS0, HEADS0},
    {"attn.v_proj.weight", HEADS0, HEADS0},
    {"attn.c_proj.weight", HEADS1, HEADS1},
    {"attn.c_proj.bias", "replicate", "replicate"},
    {"mlp.c_fc.weight", CUT0, CUT0},
    {"mlp.c_fc.bias", CUT0, CUT0},
    {"mlp.c_proj.weight", CUT1, CUT1},
    {"mlp.c_proj.bias", "replicate", "replicate"},
    {"ln_1.weight", "replicate", "replicate"},
};
static const Pin llama_head[] = {
    {"lm_head.weight", CUT0, CUT0},
    {"model.norm.weight", "replicate", "replicate"},
    {"d.x", "replicate", CUT0},
    {"logits", NULL, NULL},
};
static const Pin gpt2_embed[] = {
    {"wte.weight", CUT0, CUT0},
    {"wpe.weight", "replicate", "replicate"},
    {"y", "replicate", CUT0},
    {"tokens", "replicate", "replicate"},
};

static void strategies_pin(void **state)
{
    static const struct {
        const char *model;
        int kind;
        const Pin *pin;
        int n;
    } table[] = {{"llama-tiny", 1, llama_layer, sizeof llama_layer / sizeof *llama_layer},
                 {"gpt2-tiny", 1, gpt2_layer, sizeof gpt2_layer / sizeof *gpt2_layer},
                 {"llama-tiny", 2, llama_head, sizeof llama_head / sizeof *llama_head},
                 {"gpt2-tiny", 0, gpt2_embed, sizeof gpt2_embed / sizeof *gpt2_embed}};
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Arena arena;
        ModelConfig config;
        Model model;
        DO(arena_open(&arena, "pins", (size_t)1 << 28));
        DO(model_config_load(table[i].model, NULL, 0, &arena, &config));
        DO(model_build(&config, F32, (BatchShape){2, 8}, &arena, &model));
        Graph *g = &model.kind[table[i].kind];
        DO(differentiate(g));
        expect_pins(g, &config, &arena, table[i].pin, table[i].n);
        arena_close(&arena);
    }
}

static void rows_must_fit(void **state)
{
    static const StrategyRow row = {"w", "tp", 2, BY_ONE};
    const Strategy s = {.name = "hand made", .row = &row, .n = 1};
    const Mesh mesh = mesh_of_two();
    Layout *pin;
    unsigned *pinned;
    GraphTest b;
    (void)state;
    graph_test_open(&b, "u");
    graph_test_w(&b, "w", F, D);
    expect_error("no such dim", strategy_pins(&s, &b.g, &mesh, &b.arena, &pin, &pinned), ERR_CONFIG,
                 "strategy hand made: row \"w\" cuts dim 2 of w, which has 2 dims");
    graph_test_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block),
        cmocka_unit_test(a_weight_twice),
        cmocka_unit_test(a_value_twice),
        cmocka_unit_test(an_embedding),
        cmocka_unit_test(a_head),
        cmocka_unit_test(x_must_reach_y),
        cmocka_unit_test(one_rank_inserts_nothing),
        cmocka_unit_test(strategies_pin),
        cmocka_unit_test(rows_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
