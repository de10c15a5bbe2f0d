/* place_units.h -- small units to place, and unusual strategies in addition to those of
 * strategy.h. */
#ifndef TESTS_UNIT_PLACE_UNITS_H
#define TESTS_UNIT_PLACE_UNITS_H

#include "place_test.h"

typedef void (*Builder)(GraphTest *b);

/* y = x + down gelu(up x), with biases: that of down is added once, by part 0. */
static inline void build_mlp(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b);
    const Value up = graph_test_w(b, "mlp.up_proj.weight", F, D);
    const Value up_bias = vector(g, "mlp.up_proj.bias", F, INIT_ZEROS);
    const Value act = graph_name(g, gelu(g, linear(g, x, up, up_bias)), "act");
    const Value down = graph_test_w(b, "mlp.down_proj.weight", D, F);
    const Value down_bias = vector(g, "mlp.down_proj.bias", D, INIT_ZEROS);
    stream_out(g, add(g, x, linear(g, act, down, down_bias)));
}

/* The token table is sharded over the vocabulary; the position table is not sharded. */
static inline void build_embed(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value tokens = input(g, INPUT_TOKENS, dim_of(T));
    const Value positions = input(g, INPUT_POSITIONS, dim_of(T));
    const Value words = embedding(g, tokens, graph_test_w(b, "wte.weight", F, D));
    stream_out(g, add(g, words, embedding(g, positions, graph_test_w(b, "wpe.weight", E, D))));
}

static inline void build_head(GraphTest *b)
{
    graph_test_open(b, "u");
    Graph *g = &b->g;
    const Value x = graph_test_x(b), n = vector(g, "norm.weight", D, INIT_ONES);
    const Value w = graph_test_w(b, "lm_head.weight", F, D);
    const Value a = graph_name(g, rmsnorm(g, x, n, 1e-5), "head.in");
    const Value targets = input(g, INPUT_TARGETS, dim_of(T));
    token_loss(g, a, w, targets, input(g, INPUT_WEIGHTS, dim_of(T)));
}

enum { HEADS = 4, KEY_HEADS = 2, SIZE = 2 };

static inline void build_attention(GraphTest *b)
{
    graph_test_open(b, "attention");
    Graph *g = &b->g;
    const Value x = graph_test_x(b);
    const Value wq = graph_test_w(b, "q_proj.weight", HEADS * SIZE, D);
    const Value wk = graph_test_w(b, "k_proj.weight", KEY_HEADS * SIZE, D);
    const Value wv = graph_test_w(b, "v_proj.weight", KEY_HEADS * SIZE, D);
    const Value q = heads(g, linear(g, x, wq, NO_VALUE), SIZE);
    const Value k = heads(g, linear(g, x, wk, NO_VALUE), SIZE);
    const Value v = heads(g, linear(g, x, wv, NO_VALUE), SIZE);
    const Value o = attention(g, q, k, v, input(g, INPUT_RANGES, dim_of(T)), 1, T);
    const Value wo = graph_test_w(b, "o_proj.weight", D, HEADS * SIZE);
    stream_out(g, linear(g, merge(g, o), wo, NO_VALUE));
}

/* A llama layer with those heads. */
static inline void build_layer(GraphTest *b)
{
    ModelConfig c = *test_model("llama");
    Model m;
    graph_test_open(b, "layer");
    c.n_heads = HEADS;
    c.n_kv_heads = KEY_HEADS;
    c.head_size = SIZE;
    DO(model_build(&c, F64, (BatchShape){1, T}, &b->arena, &m));
    b->g = m.kind[1];
}

/* Strategies that no user would choose: they shard some weights only, the stream by columns, or
 * inner values. */
static const StrategyRow half[] = {{"*up_proj.weight", "tp", 0, BY_ONE},
                                   {"*up_proj.bias", "tp", 0, BY_ONE},
                                   {"wpe.weight", "tp", 1, BY_ONE},
                                   {"*q_proj.weight", "tp", 0, BY_HEAD},
                                   {"lm_head.weight", "tp", 1, BY_ONE}};
static const StrategyRow across[] = {{"x", "tp", 1, BY_ONE},
                                     {"y", "tp", 1, BY_ONE},
                                     {"*down_proj.weight", "tp", 1, BY_ONE},
                                     {"*o_proj.weight", "tp", 0, BY_ONE},
                                     {"lm_head.weight", "tp", 0, BY_ONE},
                                     {"wte.weight", "tp", 1, BY_ONE}};
static const StrategyRow rows[] = {{"x", "tp", 0, BY_ONE}, {"y", "tp", 0, BY_ONE}};
static const StrategyRow inner[] = {{"act", "tp", 1, BY_ONE},
                                    {"head.in", "tp", 1, BY_ONE},
                                    {"x", "tp", 0, BY_ONE},
                                    {"*down_proj.weight", "tp", 0, BY_ONE},
                                    {"*down_proj.bias", "tp", 0, BY_ONE}};

#define ODD(name_, rows)                                                                           \
    {                                                                                              \
        .name = name_, .row = rows, .n = sizeof rows / sizeof *rows, .heads = HEADS,               \
        .key_heads = KEY_HEADS, .head_size = SIZE                                                  \
    }
static const Strategy odd[] = {
    ODD("some weights", half),
    ODD("stream across", across),
    ODD("stream alone", rows),
    ODD("inner values", inner),
    {.name = "nothing", .heads = HEADS, .key_heads = KEY_HEADS, .head_size = SIZE}};

#endif
