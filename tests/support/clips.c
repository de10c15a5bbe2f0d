/* clips.c -- the graphs of the family of clips. */
#include "support/clips.h"

#include "support/models.h"

static Dim rows_of(const ModelBuilder *b) { return dim_of(b->rows.cap); }

static Value normed(Graph *g, const ModelBuilder *b, Value x, const char *weight, const char *name)
{
    const ModelConfig *c = b->config;
    return graph_name(g, rmsnorm(g, x, vector(g, weight, c->width, INIT_ONES), c->norm_eps), "%s",
                      name);
}

static Value projected(Graph *g, const ModelBuilder *b, Value a, const char *name, int64_t n)
{
    const ModelConfig *c = b->config;
    const Value w = weight2(g, name, n * c->head_size, c->width, c->init_std);
    return heads(g, linear(g, a, w, NO_VALUE), c->head_size);
}

/* A layer with attention along one dim. */
static void layer(Graph *g, const ModelBuilder *b, int64_t length, int64_t inner)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, rows_of(b), c->width);
    const Value a = normed(g, b, x, "input_layernorm.weight", "attn.in");
    const Value q = projected(g, b, a, "self_attn.q_proj.weight", c->n_heads);
    const Value k = projected(g, b, a, "self_attn.k_proj.weight", c->n_kv_heads);
    const Value v = projected(g, b, a, "self_attn.v_proj.weight", c->n_kv_heads);
    const Value o = attention_along(g, q, k, v, length, inner, 0.7);
    const Value wo =
        weight2(g, "self_attn.o_proj.weight", c->width, c->n_heads * c->head_size, c->init_std);
    const Value mid = graph_name(g, add(g, x, linear(g, merge(g, o), wo, NO_VALUE)), "mid");
    const Value m = normed(g, b, mid, "post_attention_layernorm.weight", "mlp.in");
    const Value wg = weight2(g, "mlp.gate_proj.weight", c->ff_width, c->width, c->init_std);
    const Value wu = weight2(g, "mlp.up_proj.weight", c->ff_width, c->width, c->init_std);
    const Value h = swiglu(g, linear(g, m, wg, NO_VALUE), linear(g, m, wu, NO_VALUE));
    const Value wd = weight2(g, "mlp.down_proj.weight", c->width, c->ff_width, c->init_std);
    stream_out(g, add(g, mid, linear(g, graph_name(g, h, "mlp.act"), wd, NO_VALUE)));
}

static void spatial(Graph *g, const ModelBuilder *b) { layer(g, b, b->config->places, 1); }

static void temporal(Graph *g, const ModelBuilder *b)
{
    layer(g, b, b->config->frames, b->config->places);
}

static void width(Graph *g, const ModelBuilder *b) { layer(g, b, PLACES_WIDTH, 1); }

static void height(Graph *g, const ModelBuilder *b)
{
    layer(g, b, b->config->places / PLACES_WIDTH, PLACES_WIDTH);
}

static void embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value w = weight2(g, "embed_tokens.weight", c->vocab, c->width, c->init_std);
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, rows_of(b)), w));
}

static void head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, rows_of(b), c->width);
    const Value a = normed(g, b, x, "norm.weight", "head.in");
    token_loss(g, a, weight2(g, "lm_head.weight", c->vocab, c->width, c->init_std),
               input(g, INPUT_TARGETS, rows_of(b)), input(g, INPUT_WEIGHTS, rows_of(b)));
}

static int kind_of_two(const ModelConfig *c, int index)
{
    (void)c;
    return 1 + index % 2;
}

static int kind_of_three(const ModelConfig *c, int index)
{
    (void)c;
    return 1 + index % 3;
}

static const UnitKind two[] = {
    {"embed", embed}, {"spatial", spatial}, {"temporal", temporal}, {"head", head}};
static const UnitKind three[] = {
    {"embed", embed}, {"width", width}, {"height", height}, {"temporal", temporal}, {"head", head}};

static const FamilyBuilder two_builder = {two, 4, kind_of_two, "model.layers.%d."};
static const FamilyBuilder three_builder = {three, 5, kind_of_three, "model.layers.%d."};

ModelConfig clips_config(int layers, int dims, int64_t frames, int64_t places)
{
    ModelConfig c = *test_model("llama");
    c.name = "clips";
    c.builder = dims == 2 ? &two_builder : &three_builder;
    c.n_layers = layers;
    c.frames = frames;
    c.places = places;
    c.full_mask = true;
    c.max_positions = frames * places;
    return c;
}
