/* llama.c -- Llama 2 and 3, Mistral, Qwen2, Qwen3, and their kin with experts: one block with
 * options.
 *
 *   T rows, D width, H query heads, K key heads, c head size, F feed-forward width, V vocabulary
 *
 *   x [T,D] -+- norm - q [T,H,c], k v [T,K,c] - (norm) - rope - attention - o_proj -(+)- mid
 *            +-----------------------------------------------------------------------^
 *   mid -----+- norm - gate, up [T,F] - swiglu - down_proj -(+)- y
 *            +----------------------------------------------^
 *
 *   embed   x = embed_tokens[tokens]                               embed_tokens [V, D]
 *   layer   mid = x + o_proj(attention(rope(q(a)), rope(k(a)), v(a)))   a = rmsnorm(x)
 *           y = mid + down(silu(gate(m)) * up(m))                       m = rmsnorm(mid)
 *   moe     the same, with a mixture of experts in place of down(...)   model/experts.c
 *   head    loss = token_loss(rmsnorm(x) @ w^T, targets)           w [V, D], embed_tokens if tied
 *
 * H is a multiple of K (grouped-query attention): query head h reads key head h / (H / K). */
#include "model/build.h"

#include <math.h>

static Attr rope_attr(const ModelConfig *c)
{
    return (Attr){.rope = {.theta = c->rope.theta,
                           .factor = c->rope.factor,
                           .low = c->rope.low,
                           .high = c->rope.high,
                           .original = c->rope.original,
                           .scaling = c->rope.scaling}};
}

/* NO_VALUE: `linear` adds no bias. */
static Value bias_if(Graph *g, bool wanted, const char *name, int64_t n)
{
    return wanted ? vector(g, name, n, INIT_ZEROS) : NO_VALUE;
}

/* Rotary embedding of q [T, H, c] or k [T, K, c], after the per-head rmsnorm of Qwen3. */
static Value rotated(Graph *g, const ModelBuilder *b, Value x, const char *norm)
{
    const ModelConfig *c = b->config;
    const Attr attr = rope_attr(c);
    const Value positions = input(g, INPUT_POSITIONS, b->rows);
    if (c->qk_norm) x = rmsnorm(g, x, vector(g, norm, c->head_size, INIT_ONES), c->norm_eps);
    return rope(g, x, positions, &attr);
}

/* A projection [T, n]; OLMoE normalizes all heads of a row together. */
static Value projected(Graph *g, const ModelBuilder *b, Value y, const char *norm, int64_t n)
{
    const ModelConfig *c = b->config;
    return c->q_norm ? rmsnorm(g, y, vector(g, norm, n, INIT_ONES), c->norm_eps) : y;
}

/* o_proj(softmax(q k^T / sqrt(c)) v) for a [T, D]; row i attends to the keys in ranges[i]. */
static Value self_attention(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, Hc = c->n_heads * c->head_size, Kc = c->n_kv_heads * c->head_size;
    const double std = c->init_std;
    /* Declared in a row, so they are adjacent in the pack and one GEMM computes q, k and v. */
    const Value wq = weight2(g, "self_attn.q_proj.weight", Hc, D, std);
    const Value wk = weight2(g, "self_attn.k_proj.weight", Kc, D, std);
    const Value wv = weight2(g, "self_attn.v_proj.weight", Kc, D, std);
    const Value bq = bias_if(g, c->qkv_bias, "self_attn.q_proj.bias", Hc);
    const Value bk = bias_if(g, c->qkv_bias, "self_attn.k_proj.bias", Kc);
    const Value bv = bias_if(g, c->qkv_bias, "self_attn.v_proj.bias", Kc);
    /* q, qr and o: [T, H, c]; k, kr and v: [T, K, c] */
    const Value pq = projected(g, b, linear(g, a, wq, bq), "self_attn.q_norm.weight", Hc);
    const Value q = graph_name(g, heads(g, pq, c->head_size), "attn.q");
    const Value pk = projected(g, b, linear(g, a, wk, bk), "self_attn.k_norm.weight", Kc);
    const Value k = graph_name(g, heads(g, pk, c->head_size), "attn.k");
    const Value v = graph_name(g, heads(g, linear(g, a, wv, bv), c->head_size), "attn.v");
    const Value qr = graph_name(g, rotated(g, b, q, "self_attn.q_norm.weight"), "attn.q.rope");
    const Value kr = graph_name(g, rotated(g, b, k, "self_attn.k_norm.weight"), "attn.k.rope");
    const Value ranges = input(g, INPUT_RANGES, b->rows);
    const double scaling = 1.0 / sqrt((double)c->head_size);
    const Value o = graph_name(g, attention(g, qr, kr, v, ranges, scaling, b->span), "attn.out");
    graph_name(g, second_output(g, o), "attn.lse"); /* [T, H], log-sum-exp of the scores */
    const Value wo = weight2(g, "self_attn.o_proj.weight", D, Hc, std);
    const Value bo = bias_if(g, c->o_bias, "self_attn.o_proj.bias", D);
    return linear(g, merge(g, o), wo, bo);
}

/* down(silu(gate(a)) * up(a)): [T, D] -> [T, F] -> [T, D]. */
static Value gated_mlp(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, F = c->ff_width;
    const Value wg = weight2(g, "mlp.gate_proj.weight", F, D, c->init_std);
    const Value wu = weight2(g, "mlp.up_proj.weight", F, D, c->init_std);
    const Value bg = bias_if(g, c->mlp_bias, "mlp.gate_proj.bias", F);
    const Value bu = bias_if(g, c->mlp_bias, "mlp.up_proj.bias", F);
    const Value gate = graph_name(g, linear(g, a, wg, bg), "mlp.gate");
    const Value up = graph_name(g, linear(g, a, wu, bu), "mlp.up");
    const Value h = graph_name(g, swiglu(g, gate, up), "mlp.act");
    const Value wd = weight2(g, "mlp.down_proj.weight", D, F, c->init_std);
    const Value bd = bias_if(g, c->mlp_bias, "mlp.down_proj.bias", D);
    return linear(g, h, wd, bd);
}

typedef Value FeedForward(Graph *g, const ModelBuilder *b, Value a);

static void build_layer(Graph *g, const ModelBuilder *b, FeedForward *feed_forward)
{
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width);
    const Value n1 = vector(g, "input_layernorm.weight", c->width, INIT_ONES);
    const Value a = graph_name(g, rmsnorm(g, x, n1, c->norm_eps), "attn.in");
    const Value mid = graph_name(g, add(g, x, self_attention(g, b, a)), "mid");
    const Value n2 = vector(g, "post_attention_layernorm.weight", c->width, INIT_ONES);
    const Value m = graph_name(g, rmsnorm(g, mid, n2, c->norm_eps), "mlp.in");
    stream_out(g, add(g, mid, feed_forward(g, b, m)));
}

static void llama_layer(Graph *g, const ModelBuilder *b) { build_layer(g, b, gated_mlp); }

static void moe_layer(Graph *g, const ModelBuilder *b) { build_layer(g, b, mixture_of_experts); }

enum { KIND_LAYER = 1, KIND_MOE };

static int kind_of_layer(const ModelConfig *c, int layer)
{
    return layer_has_experts(c, layer) ? KIND_MOE : KIND_LAYER;
}

static void llama_embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value w = weight2(g, "model.embed_tokens.weight", c->vocab, c->width, c->init_std);
    stream_out(g, embedding(g, input(g, INPUT_TOKENS, b->rows), w));
}

static void llama_head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = head_in(g, b);
    const Value n = vector(g, "model.norm.weight", c->width, INIT_ONES);
    const char *name = c->tied ? "model.embed_tokens.weight" : "lm_head.weight";
    const Value w = weight2(g, name, c->vocab, c->width, c->init_std);
    const Value a = graph_name(g, rmsnorm(g, x, n, c->norm_eps), "head.in");
    head_out(g, b, a, w);
}

static const UnitKind llama_kinds[] = {
    {"embed", llama_embed}, {"layer", llama_layer}, {"moe", moe_layer}, {"head", llama_head}};

const FamilyBuilder llama_builder = {llama_kinds, 4, kind_of_layer, "model.layers.%d."};
