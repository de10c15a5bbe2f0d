/* gpt2.c -- GPT-2: learned positions, layernorm, biases on all projections, gelu.
 *
 *   T rows, D width, H heads, c = D / H head size, F feed-forward width, V vocabulary, P positions
 *
 *   embed   x = wte[tokens] + wpe[positions]                           wte [V, D], wpe [P, D]
 *   layer   a = layernorm(x)                                           [T, D]
 *           mid = x + c_proj(attention(q(a), k(a), v(a)))              q k v [T, H, c]
 *           y = mid + c_proj(gelu(c_fc(layernorm(mid))))               c_fc [F, D], c_proj [D, F]
 *   head    loss = token_loss(layernorm(x) @ w^T, targets)             w [V, D], wte if tied
 *
 * Hugging Face stores q, k and v in one transposed tensor, c_attn. Here they are three parameters,
 * h.N.attn.{q,k,v}_proj, stored [out, in]; names.c maps between the two. */
#include "model/build.h"

#include <math.h>

/* c_proj(softmax(q k^T / sqrt(c)) v) for a [T, D]; row i attends to the keys in ranges[i]. */
static Value attend(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width;
    const Value wq = weight2(g, "attn.q_proj.weight", D, D, c->init_std);
    const Value wk = weight2(g, "attn.k_proj.weight", D, D, c->init_std);
    const Value wv = weight2(g, "attn.v_proj.weight", D, D, c->init_std);
    const Value bq = vector(g, "attn.q_proj.bias", D, INIT_ZEROS);
    const Value bk = vector(g, "attn.k_proj.bias", D, INIT_ZEROS);
    const Value bv = vector(g, "attn.v_proj.bias", D, INIT_ZEROS);
    /* q, k, v and o: [T, H, c] */
    const Value q = graph_name(g, heads(g, linear(g, a, wq, bq), c->head_size), "attn.q");
    const Value k = graph_name(g, heads(g, linear(g, a, wk, bk), c->head_size), "attn.k");
    const Value v = graph_name(g, heads(g, linear(g, a, wv, bv), c->head_size), "attn.v");
    const Value ranges = input(g, INPUT_RANGES, b->rows);
    const double scaling = 1.0 / sqrt((double)c->head_size);
    const Value o = graph_name(g, attention(g, q, k, v, ranges, scaling, b->span), "attn.out");
    graph_name(g, second_output(g, o), "attn.lse"); /* [T, H], log-sum-exp of the scores */
    /* 2 n_layers branches add to the residual stream: the published recipe scales their initial
     * weights by 1 / sqrt(2 n_layers), so that its variance does not grow with depth. */
    const double std = c->init_std / sqrt(2.0 * (double)c->n_layers);
    const Value wo = weight2(g, "attn.c_proj.weight", D, D, std);
    const Value bo = vector(g, "attn.c_proj.bias", D, INIT_ZEROS);
    return linear(g, merge(g, o), wo, bo);
}

/* c_proj(gelu(c_fc(a))): [T, D] -> [T, F] -> [T, D]. */
static Value feed_forward(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, F = c->ff_width;
    const Value w1 = weight2(g, "mlp.c_fc.weight", F, D, c->init_std);
    const Value b1 = vector(g, "mlp.c_fc.bias", F, INIT_ZEROS);
    const Value up = graph_name(g, linear(g, a, w1, b1), "mlp.up");
    const Value h = graph_name(g, gelu(g, up), "mlp.act");
    const double std = c->init_std / sqrt(2.0 * (double)c->n_layers);
    const Value w2 = weight2(g, "mlp.c_proj.weight", D, F, std);
    return linear(g, h, w2, vector(g, "mlp.c_proj.bias", D, INIT_ZEROS));
}

/* layernorm(x) * weight + bias over the last dim of x [T, D]. */
static Value norm(Graph *g, const ModelBuilder *b, Value x, const char *weight, const char *bias)
{
    const Value w = vector(g, weight, b->config->width, INIT_ONES);
    return layernorm(g, x, w, vector(g, bias, b->config->width, INIT_ZEROS), b->config->norm_eps);
}

static void gpt2_layer(Graph *g, const ModelBuilder *b)
{
    const Value x = stream_in(g, b->rows, b->config->width);
    const Value a = graph_name(g, norm(g, b, x, "ln_1.weight", "ln_1.bias"), "attn.in");
    const Value mid = graph_name(g, add(g, x, attend(g, b, a)), "mid");
    const Value m = graph_name(g, norm(g, b, mid, "ln_2.weight", "ln_2.bias"), "mlp.in");
    stream_out(g, add(g, mid, feed_forward(g, b, m)));
}

static void gpt2_embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value wte = weight2(g, "wte.weight", c->vocab, c->width, c->init_std);
    const Value wpe = weight2(g, "wpe.weight", c->max_positions, c->width, c->init_std);
    const Value tokens = embedding(g, input(g, INPUT_TOKENS, b->rows), wte);
    const Value positions = embedding(g, input(g, INPUT_POSITIONS, b->rows), wpe);
    stream_out(g, add(g, tokens, positions));
}

static void gpt2_head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const Value x = head_in(g, b);
    const Value a = graph_name(g, norm(g, b, x, "ln_f.weight", "ln_f.bias"), "head.in");
    const Value w =
        weight2(g, c->tied ? "wte.weight" : "lm_head.weight", c->vocab, c->width, c->init_std);
    head_out(g, b, a, w);
}

static const UnitKind gpt2_kinds[] = {
    {"embed", gpt2_embed}, {"layer", gpt2_layer}, {"head", gpt2_head}};

const FamilyBuilder gpt2_builder = {gpt2_kinds, 3, NULL, "h.%d."};
