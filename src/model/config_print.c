/* config_print.c -- the description of a model for people, and the list of keys for `help`.
 *
 *     llama3.2-1b: llama, 16 layers, vocabulary 128256, up to 131072 positions
 *       width 2048, feed-forward 8192, 32 heads of 64, 8 for keys and values
 *       rope theta 500000, llama3 scaling x 32 (low 1, high 4, original 8192)
 *       tied embedding; norm eps 1e-05; init std 0.02 */
#include "model/config_rows.h"

static void print_positions(const ModelConfig *c, Text *out)
{
    static const char *const scaling[] = {"no", "linear", "llama3"};
    if (c->family == FAMILY_GPT2) {
        text_add(out, "  learned positions");
    } else {
        text_add(out, "  rope theta %.10g, %s scaling", c->rope.theta, scaling[c->rope.scaling]);
        if (c->rope.scaling != ROPE_PLAIN) text_add(out, " x %g", c->rope.factor);
        if (c->rope.scaling == ROPE_LLAMA3)
            text_add(out, " (low %g, high %g, original %lld)", c->rope.low, c->rope.high,
                     (long long)c->rope.original);
    }
    if (c->q_norm) text_add(out, "; norm of q and k, all heads together");
    if (c->window) text_add(out, "; window %lld", (long long)c->window);
    if (c->qk_norm) text_add(out, "; norm of q and k");
    text_add(out, "\n");
}

static void print_experts(const ExpertConfig *x, Text *out)
{
    if (x->n == 0) return;
    text_add(out, "  %lld experts of width %lld, %lld of each token", (long long)x->n,
             (long long)x->width, (long long)x->chosen);
    if (x->shared_width)
        text_add(out, "; one of width %lld of all tokens", (long long)x->shared_width);
    text_add(out, "; gates %s", x->renormalize ? "sum to 1" : "are not renormalized");
    if (x->score == ROUTE_SIGMOID) text_add(out, "; sigmoid scores");
    if (x->bias) text_add(out, " and a selection bias");
    if (x->groups > 1)
        text_add(out, "; %lld of %lld groups", (long long)x->chosen_groups, (long long)x->groups);
    if (x->scaling < 1 || x->scaling > 1) text_add(out, "; gates times %g", x->scaling);
    if (x->dense_first) text_add(out, "; not in the first %lld layers", (long long)x->dense_first);
    if (x->sparse_step > 1) text_add(out, "; in every %lldth layer", (long long)x->sparse_step);
    if (x->dense_layers) text_add(out, "; not in layers %s", x->dense_layers);
    text_add(out, "\n");
}

static void print_clip_model(const ModelConfig *c, Text *out)
{
    const ClipConfig *x = &c->clip;
    text_add(out, "%s: %s, %lld layers, clips of %lld tokens\n", c->name, family_name(c->family),
             (long long)c->n_layers, (long long)c->max_positions);
    text_add(out, "  width %lld, feed-forward %lld, %lld heads of %lld; attention %s\n",
             (long long)c->width, (long long)c->ff_width, (long long)c->n_heads,
             (long long)c->head_size,
             x->dims == 3 ? "along height, width and frames in turn"
                          : "within frames and across frames in turn");
    text_add(out, "  %lld frames of %lld x %lld latents of %lld channels, patches of %lld x %lld\n",
             (long long)c->frames, (long long)x->height, (long long)x->width,
             (long long)x->channels, (long long)x->patch, (long long)x->patch);
    if (x->text_length)
        text_add(out, "  text of %lld states of %lld\n", (long long)x->text_length,
                 (long long)x->text_width);
    text_add(out, "  norm eps %g; init std %g\n", c->norm_eps, c->init_std);
}

void model_config_print(const ModelConfig *c, Text *out)
{
    if (c->frames) {
        print_clip_model(c, out);
        return;
    }
    text_add(out, "%s: %s, %lld layers, vocabulary %lld, up to %lld positions\n", c->name,
             family_name(c->family), (long long)c->n_layers, (long long)c->vocab,
             (long long)c->max_positions);
    text_add(out, "  width %lld, feed-forward %lld, %lld heads of %lld", (long long)c->width,
             (long long)c->ff_width, (long long)c->n_heads, (long long)c->head_size);
    if (c->n_kv_heads != c->n_heads)
        text_add(out, ", %lld for keys and values", (long long)c->n_kv_heads);
    text_add(out, "\n");
    print_experts(&c->experts, out);
    print_positions(c, out);
    text_add(out, "  %s embedding", c->tied ? "tied" : "untied");
    if (c->qkv_bias || c->o_bias || c->mlp_bias)
        text_add(out, "; biases on%s%s%s", c->qkv_bias ? " qkv" : "", c->o_bias ? " o" : "",
                 c->mlp_bias ? " mlp" : "");
    text_add(out, "; norm eps %g; init std %g\n", c->norm_eps, c->init_std);
}

bool model_key(int i, ModelKey *out)
{
    if (i >= row_count()) return false;
    const Row *row = row_at(i);
    *out = (ModelKey){row->key, row->meaning, row->only, row->families};
    return true;
}

bool model_key_is_read(const char *key, Family family)
{
    const int r = row_find(key, family);
    return r == ROW_OBJECT || (r >= 0 && row_at(r)->kind != ROW_ONLY);
}

Err model_key_check(const char *key, const char *origin)
{
    for (int f = 0; f < N_FAMILIES; f++)
        if (row_find(key, (Family)f) != ROW_UNKNOWN) return OK;
    const char *near = row_nearest(key, (1u << N_FAMILIES) - 1);
    return err_fail(ERR_CONFIG, "%s: model.%.80s: unknown key%s%s%s; `sheaf help model` lists them",
                    origin, key, near ? "; did you mean model." : "", near ? near : "",
                    near ? "?" : "");
}
