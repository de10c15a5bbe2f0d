/* gpt2.c -- GPT-2: learned positions, layernorm, biases everywhere, gelu.
 *
 *   x [T,D] --norm--> q k v [T,H,c] --attention--c_proj--(+ x)--norm--c_fc--gelu--c_proj--(+)--> y
 *
 * Hugging Face keeps q, k and v in one transposed tensor, c_attn; here they are
 * h.N.attn.{q,k,v}_proj, stored [out, in], and names.c translates. */
#include "model/build.h"

#include <math.h>

static Value attend(Graph *g, const Build *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width;
    const Value wq = weight2(g, "attn.q_proj.weight", D, D, c->init_std);
    const Value wk = weight2(g, "attn.k_proj.weight", D, D, c->init_std);
    const Value wv = weight2(g, "attn.v_proj.weight", D, D, c->init_std);
    const Value bq = vector(g, "attn.q_proj.bias", D, INIT_ZEROS);
    const Value bk = vector(g, "attn.k_proj.bias", D, INIT_ZEROS);
    const Value bv = vector(g, "attn.v_proj.bias", D, INIT_ZEROS);
    const Value q = graph_name(g, heads(g, linear(g, a, wq, bq), c->head_size), "attn.q");
    const Value k = graph_name(g, heads(g, linear(g, a, wk, bk), c->head_size), "attn.k");
    const Value v = graph_name(g, heads(g, linear(g, a, wv, bv), c->head_size), "attn.v");
    const Value ranges = input(g, INPUT_RANGES, b->rows);
    const double scaling = 1.0 / sqrt((double)c->head_size);
    const Value o = graph_name(g, attention(g, q, k, v, ranges, scaling, b->span), "attn.out");
    graph_name(g, second_output(g, o), "attn.lse");
    /* Residual branches start smaller, as the published recipe has it. */
    const double std = c->init_std / sqrt(2.0 * (double)c->n_layers);
    const Value wo = weight2(g, "attn.c_proj.weight", D, D, std);
    const Value bo = vector(g, "attn.c_proj.bias", D, INIT_ZEROS);
    return linear(g, merge(g, o), wo, bo);
}

static Value feed_forward(Graph *g, const Build *b, Value a)
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

static Value norm(Graph *g, const Build *b, Value x, const char *weight, const char *bias)
{
    const Value w = vector(g, weight, b->config->width, INIT_ONES);
    return layernorm(g, x, w, vector(g, bias, b->config->width, INIT_ZEROS), b->config->norm_eps);
}

static void gpt2_layer(Graph *g, const Build *b)
{
    const Value x = stream_in(g, b->rows, b->config->width);
    const Value a = graph_name(g, norm(g, b, x, "ln_1.weight", "ln_1.bias"), "attn.in");
    const Value mid = graph_name(g, add(g, x, attend(g, b, a)), "mid");
    const Value m = graph_name(g, norm(g, b, mid, "ln_2.weight", "ln_2.bias"), "mlp.in");
    stream_out(g, add(g, mid, feed_forward(g, b, m)));
}

static void gpt2_embed(Graph *g, const Build *b)
{
    const ModelConfig *c = b->config;
    const Value wte = weight2(g, "wte.weight", c->vocab, c->width, c->init_std);
    const Value wpe = weight2(g, "wpe.weight", c->max_positions, c->width, c->init_std);
    const Value tokens = embedding(g, input(g, INPUT_TOKENS, b->rows), wte);
    const Value positions = embedding(g, input(g, INPUT_POSITIONS, b->rows), wpe);
    stream_out(g, add(g, tokens, positions));
}

static void gpt2_head(Graph *g, const Build *b)
{
    const ModelConfig *c = b->config;
    const Value x = head_in(g, b);
    const Value a = graph_name(g, norm(g, b, x, "ln_f.weight", "ln_f.bias"), "head.in");
    const Value w =
        weight2(g, c->tied ? "wte.weight" : "lm_head.weight", c->vocab, c->width, c->init_std);
    head_out(g, b, a, w);
}

const FamilyBuilder gpt2_builder = {gpt2_embed, gpt2_layer, gpt2_head, "h.%d."};
