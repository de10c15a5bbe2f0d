/* two_kinds.c -- the graphs of the alternating family. */
#include "support/two_kinds.h"

#include "support/models.h"

static Value normed(Graph *g, const ModelBuilder *b, Value x, const char *name)
{
    const ModelConfig *c = b->config;
    const Value w = vector(g, "norm.weight", c->width, INIT_ONES);
    return graph_name(g, rmsnorm(g, x, w, c->norm_eps), "%s", name);
}

static Value projected(Graph *g, const ModelBuilder *b, Value a, const char *name, int64_t n)
{
    const ModelConfig *c = b->config;
    const Value w = weight2(g, name, n * c->head_size, c->width, c->init_std);
    return heads(g, linear(g, a, w, NO_VALUE), c->head_size);
}

static Value turned(Graph *g, const ModelBuilder *b, Value x)
{
    const Attr attr = {.rope = {.theta = b->config->rope.theta, .factor = 1}};
    return rope(g, x, input(g, INPUT_POSITIONS, b->rows), &attr);
}

static void attend(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width), a = normed(g, b, x, "attn.in");
    const Value q = turned(g, b, projected(g, b, a, "q_proj.weight", c->n_heads));
    const Value k = turned(g, b, projected(g, b, a, "k_proj.weight", c->n_kv_heads));
    const Value v = projected(g, b, a, "v_proj.weight", c->n_kv_heads);
    const Value o = attention(g, q, k, v, input(g, INPUT_RANGES, b->rows), 0.7, b->span);
    const Value wo = weight2(g, "o_proj.weight", c->width, c->n_heads * c->head_size, c->init_std);
    stream_out(g, add(g, x, linear(g, merge(g, o), wo, NO_VALUE)));
}

static void feed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width), a = normed(g, b, x, "mlp.in");
    const Value wg = weight2(g, "gate_proj.weight", c->ff_width, c->width, c->init_std);
    const Value wu = weight2(g, "up_proj.weight", c->ff_width, c->width, c->init_std);
    const Value h = swiglu(g, linear(g, a, wg, NO_VALUE), linear(g, a, wu, NO_VALUE));
    const Value wd = weight2(g, "down_proj.weight", c->width, c->ff_width, c->init_std);
    stream_out(g, add(g, x, linear(g, graph_name(g, h, "mlp.act"), wd, NO_VALUE)));
}

static void embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value w = weight2(g, "embed_tokens.weight", c->vocab, c->width, c->init_std);
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, b->rows), w));
}

static void head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = head_in(g, b), a = normed(g, b, x, "head.in");
    head_out(g, b, a, weight2(g, "lm_head.weight", c->vocab, c->width, c->init_std));
}

static int kind_of_layer(const ModelConfig *c, int layer)
{
    (void)c;
    return layer % 2 == 0 ? 2 : 3;
}

static const UnitKind kinds[] = {
    {"embed", embed}, {"unused", feed}, {"attend", attend}, {"feed", feed}, {"head", head}};

const FamilyBuilder two_kinds_builder = {kinds, 5, kind_of_layer, "layers.%d."};

ModelConfig two_kinds_config(int layers)
{
    ModelConfig c = *test_model("llama");
    c.name = "two kinds";
    c.builder = &two_kinds_builder;
    c.n_layers = layers;
    return c;
}
