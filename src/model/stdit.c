/* stdit.c -- spatial-temporal diffusion transformers: they predict the velocity of noised latents.
 *
 *   T tokens of B clips, in the order (clip, frame, row, column); D width, H heads, c head size,
 *   F feed-forward width, P elements of a patch, S places of a frame
 *
 *   embed   x = patches W + place[row, column] + frame[frame]          W [D, P], place [S, D]
 *   layer   six vectors of each clip from its time t                   [B, D] each
 *           a = norm(x) (1 + scale) + shift                            [T, D], adaLN
 *           mid = x + gate * o_proj(attention along one dim of tokens)
 *           mid = mid + o_proj(attention to the clip's text)           if the model has text
 *           y = mid + gate * down(gelu(up(norm(mid) (1 + scale) + shift)))
 *   head    loss of ((norm(x) (1 + scale) + shift) W, velocity)        W [P, D]
 *
 * The kinds of layers take turns: spatial (places of a frame) and temporal (frames of a place), or
 * height, width and temporal. Rows keep their order; attention_along reads rows that are apart.
 *
 * Rectified flow: a clip x0 is noised to (1 - t) x0 + t noise, and the velocity is noise - x0
 * (data/clips.h). Sampling follows the velocity from t = 1 to 0 (infer/denoise.h).
 *
 * The vectors of a time: each unit has its own two-layer network over sines and cosines of t; the
 * biases of gates start at 1. DiT shares the first layer between all units. Here a unit depends on
 * nothing but x and inputs: no value crosses units beside the stream, no parameter has as many
 * holders as there are layers, and pipelines, ZeRO and recomputation need no exception. The layer
 * that is not shared has 256 D of the about 18 D^2 parameters of a block. */
#include "model/build.h"

#include <math.h>
#include <stdio.h>

enum { TIME_FEATURES = 256, TIME_RATE = 1000 };

/* x w^T + b; biases are declared after all weights that share x, which can then be one GEMM. */
static Value dense(Graph *g, const char *weight, const char *bias, Value x, int64_t out, int64_t in,
                   double std)
{
    const Value w = weight2(g, weight, out, in, std);
    return linear(g, x, w, vector(g, bias, out, INIT_ZEROS));
}

/* The vectors of a unit, [B, D] each. */
typedef struct {
    Value shift, scale, gate;
} ClipVectors;

/* A parameter "adaln.PART_NAME.KIND". */
static const char *adaln_name(char text[64], const char *part, const char *name, const char *kind)
{
    snprintf(text, 64, "adaln.%s_%s.%s", part, name, kind);
    return text;
}

/* Three vectors for each of `parts`, from the time of each clip. The head has no gate. */
static void clip_vectors(Graph *g, const ModelBuilder *b, int n, const char *const *part,
                         ClipVectors *out)
{
    static const char *const name[3] = {"shift", "scale", "gate"};
    const int64_t D = b->config->width;
    const int each = n > 1 ? 3 : 2;
    const Value t = sinusoid(g, input(g, INPUT_TIMES, b->clips), TIME_FEATURES, TIME_RATE);
    const Value h = gelu(g, dense(g, "adaln.time.weight", "adaln.time.bias", t, D, TIME_FEATURES,
                                  b->config->init_std));
    Value w[6], v[6];
    char text[64];
    for (int i = 0; i < n * each; i++)
        w[i] = weight2(g, adaln_name(text, part[i / each], name[i % each], "weight"), D, D,
                       b->config->init_std);
    for (int i = 0; i < n * each; i++)
        v[i] = linear(g, h, w[i],
                      vector(g, adaln_name(text, part[i / each], name[i % each], "bias"), D,
                             i % each == 2 ? INIT_ONES : INIT_ZEROS));
    for (int p = 0; p < n; p++)
        out[p] = (ClipVectors){v[p * each], v[p * each + 1], each > 2 ? v[p * each + 2] : NO_VALUE};
}

static Value adaptive_norm(Graph *g, const ModelBuilder *b, Value x, const ClipVectors *v)
{
    return modulate(g, x, v->scale, v->shift, input(g, INPUT_CLIPS, b->rows), b->config->norm_eps);
}

static Value gated(Graph *g, const ModelBuilder *b, Value branch, const ClipVectors *v, Value x)
{
    return gate_add(g, branch, v->gate, input(g, INPUT_CLIPS, b->rows), x);
}

/* Branches that are added to the stream start smaller in deep models, as in GPT-2. */
static double branch_std(const ModelConfig *c)
{
    return c->init_std / sqrt((c->clip.text_length ? 3.0 : 2.0) * (double)c->n_layers);
}

/* q of a [T, D]; k and v of `from`, whose rows have `in` elements: [rows, H, c] each. */
typedef struct {
    Value q, k, v;
} Projected;

static Projected project(Graph *g, const ModelBuilder *b, const char *part, Value a, Value from,
                         int64_t in)
{
    static const char *const name[3] = {"q", "k", "v"};
    const ModelConfig *c = b->config;
    const int64_t D = c->width;
    Value w[3], y[3];
    char text[64];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s.%s_proj.weight", part, name[i]);
        w[i] = weight2(g, text, D, i ? in : D, c->init_std);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s.%s_proj.bias", part, name[i]);
        y[i] =
            heads(g, linear(g, i ? from : a, w[i], vector(g, text, D, INIT_ZEROS)), c->head_size);
    }
    return (Projected){y[0], y[1], y[2]};
}

/* Attention of each token to the `length` tokens that differ from it in one dim, `inner` rows
 * apart. */
static Value self_attention(Graph *g, const ModelBuilder *b, Value a, int64_t length, int64_t inner)
{
    const ModelConfig *c = b->config;
    const Projected p = project(g, b, "self_attn", a, a, c->width);
    graph_name(g, p.q, "attn.q");
    graph_name(g, p.k, "attn.k");
    graph_name(g, p.v, "attn.v");
    const double scaling = 1.0 / sqrt((double)c->head_size);
    const Value o =
        graph_name(g, attention_along(g, p.q, p.k, p.v, length, inner, scaling), "attn.out");
    return dense(g, "self_attn.o_proj.weight", "self_attn.o_proj.bias", merge(g, o), c->width,
                 c->width, branch_std(c));
}

/* Attention of each token to the states of its clip's text. */
static Value text_attention(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t L = c->clip.text_length, K = c->clip.text_width;
    const Value wide = input_sized(g, INPUT_TEXT, dim_of(b->clips.cap * L), K);
    const Value text = g->dtype == dtype_wide(g->dtype) ? wide : cast(g, wide, g->dtype);
    const Projected p = project(g, b, "cross_attn", a, text, K);
    const Value ranges = input(g, INPUT_TEXT_RANGES, b->rows);
    const double scaling = 1.0 / sqrt((double)c->head_size);
    const Value o = graph_name(g, attention(g, p.q, p.k, p.v, ranges, scaling, L), "text.out");
    graph_name(g, second_output(g, o), "text.lse");
    return dense(g, "cross_attn.o_proj.weight", "cross_attn.o_proj.bias", merge(g, o), c->width,
                 c->width, branch_std(c));
}

static Value feed_forward(Graph *g, const ModelBuilder *b, Value a)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, F = c->ff_width;
    const Value up = graph_name(
        g, dense(g, "mlp.up_proj.weight", "mlp.up_proj.bias", a, F, D, c->init_std), "mlp.up");
    return dense(g, "mlp.down_proj.weight", "mlp.down_proj.bias",
                 graph_name(g, gelu(g, up), "mlp.act"), D, F, branch_std(c));
}

static Value norm(Graph *g, const ModelBuilder *b, Value x)
{
    const int64_t D = b->config->width;
    const Value w = vector(g, "cross_norm.weight", D, INIT_ONES);
    return layernorm(g, x, w, vector(g, "cross_norm.bias", D, INIT_ZEROS), b->config->norm_eps);
}

static void stdit_layer(Graph *g, const ModelBuilder *b, int64_t length, int64_t inner)
{
    static const char *const part[] = {"attn", "mlp"};
    const ModelConfig *c = b->config;
    const Value x = stream_in(g, b->rows, c->width);
    ClipVectors v[2];
    clip_vectors(g, b, 2, part, v);
    const Value a = graph_name(g, adaptive_norm(g, b, x, &v[0]), "attn.in");
    Value mid = gated(g, b, self_attention(g, b, a, length, inner), &v[0], x);
    if (c->clip.text_length) {
        graph_name(g, mid, "text.mid");
        mid = add(g, mid, text_attention(g, b, graph_name(g, norm(g, b, mid), "text.in")));
    }
    graph_name(g, mid, "mid");
    const Value m = graph_name(g, adaptive_norm(g, b, mid, &v[1]), "mlp.in");
    stream_out(g, gated(g, b, feed_forward(g, b, m), &v[1], mid));
}

/* Columns and rows of the tokens of a frame. */
static int64_t columns(const ModelBuilder *b)
{
    return b->config->clip.width / b->config->clip.patch;
}

static int64_t rows(const ModelBuilder *b)
{
    return b->config->clip.height / b->config->clip.patch;
}

static void spatial_layer(Graph *g, const ModelBuilder *b)
{
    stdit_layer(g, b, b->config->places, 1);
}

static void temporal_layer(Graph *g, const ModelBuilder *b)
{
    stdit_layer(g, b, b->config->frames, b->config->places);
}

static void height_layer(Graph *g, const ModelBuilder *b)
{
    stdit_layer(g, b, rows(b), columns(b));
}

static void width_layer(Graph *g, const ModelBuilder *b) { stdit_layer(g, b, columns(b), 1); }

static void stdit_embed(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const int64_t D = c->width, P = clip_patch_size(&c->clip);
    const Value wide = input_sized(g, INPUT_NOISED, b->rows, P);
    const Value patches = g->dtype == dtype_wide(g->dtype) ? wide : cast(g, wide, g->dtype);
    const Value x =
        dense(g, "embed.patch.weight", "embed.patch.bias", patches, D, P, 1.0 / sqrt((double)P));
    const Value place = embedding(g, input(g, INPUT_POSITIONS, b->rows),
                                  weight2(g, "embed.place.weight", c->places, D, c->init_std));
    const Value frame = embedding(g, input(g, INPUT_FRAMES, b->rows),
                                  weight2(g, "embed.frame.weight", c->frames, D, c->init_std));
    stream_out(g, add(g, add(g, x, place), frame));
}

static void stdit_head(Graph *g, const ModelBuilder *b)
{
    const ModelConfig *c = b->config;
    const int64_t P = clip_patch_size(&c->clip);
    static const char *const part[] = {"head"};
    const Value x = stream_in(g, b->rows, c->width);
    ClipVectors vectors;
    clip_vectors(g, b, 1, part, &vectors);
    const Value a = graph_name(g, adaptive_norm(g, b, x, &vectors), "head.in");
    const Value v = dense(g, "head.weight", "head.bias", a, P, c->width, c->init_std);
    if (b->logit_rows.cap) {
        graph_name(g, stream_out(g, v), "velocity");
        return;
    }
    square_loss(g, graph_name(g, v, "predicted"), input_sized(g, INPUT_VELOCITY, b->rows, P),
                input(g, INPUT_WEIGHTS, b->rows));
}

enum { EMBED, SPATIAL, TEMPORAL, HEIGHT, WIDTH, HEAD, N_STDIT_KINDS };

static int kind_of_layer(const ModelConfig *c, int layer)
{
    static const int turns[2][3] = {{SPATIAL, TEMPORAL}, {HEIGHT, WIDTH, TEMPORAL}};
    return turns[c->clip.dims == 3][layer % c->clip.dims];
}

static const UnitKind stdit_kinds[N_STDIT_KINDS] = {
    [EMBED] = {"embed", stdit_embed},          [SPATIAL] = {"spatial", spatial_layer},
    [TEMPORAL] = {"temporal", temporal_layer}, [HEIGHT] = {"height", height_layer},
    [WIDTH] = {"width", width_layer},          [HEAD] = {"head", stdit_head}};

const FamilyBuilder stdit_builder = {stdit_kinds, N_STDIT_KINDS, kind_of_layer, "layers.%d."};
