/* config_check.c -- derives fields from other fields, and checks that the sizes fit together. */
#include "model/config_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *key_of(const ModelConfig *c, const char *key) { return row_key(key, c->family); }

/* Writes "4, 8", or "8" if both are equal. */
static const char *near_text(int64_t below, int64_t above, char out[48])
{
    if (below == above)
        snprintf(out, 48, "%lld", (long long)above);
    else
        snprintf(out, 48, "%lld, %lld", (long long)below, (long long)above);
    return out;
}

/* linear and llama3 require their numbers. Numbers without a type are an error, since they would
 * have no effect. */
static Err resolve_rope(Draft *d)
{
    ModelConfig *c = &d->c;
    const char *type = d->rope_type ? d->rope_type : "default";
    const bool numbers = c->rope.low > 0 || c->rope.high > 0 || c->rope.original > 0;
    if (strcmp(type, "llama3") == 0)
        c->rope.scaling = ROPE_LLAMA3;
    else if (strcmp(type, "linear") == 0)
        c->rope.scaling = ROPE_LINEAR;
    else if (strcmp(type, "default") != 0)
        return err_fail(
            ERR_CONFIG,
            "%s: rope_scaling.rope_type=%.40s: this version supports default, linear and "
            "llama3; model.rope_scaling=null trains without scaling",
            c->name, type);
    if (c->rope.scaling == ROPE_LLAMA3 &&
        !(c->rope.low > 0 && c->rope.high > c->rope.low && c->rope.original > 0))
        return err_fail(ERR_CONFIG,
                        "%s: rope_scaling of type llama3 needs factor, low_freq_factor (%g), "
                        "high_freq_factor (%g, above low) and original_max_position_embeddings "
                        "(%lld)",
                        c->name, c->rope.low, c->rope.high, (long long)c->rope.original);
    if (c->rope.scaling != ROPE_LLAMA3 && numbers)
        return err_fail(ERR_CONFIG,
                        "%s: rope_scaling holds numbers of llama3, and rope_type is %s; set "
                        "rope_scaling.rope_type=llama3 or remove them",
                        c->name, type);
    if (c->rope.scaling == ROPE_PLAIN && c->rope.factor != 1)
        return err_fail(ERR_CONFIG,
                        "%s: rope_scaling.factor=%g without a type; set "
                        "rope_scaling.rope_type=linear or remove it",
                        c->name, c->rope.factor);
    return OK;
}

/* Counts the layers with a sliding window in layer_types; -1: there is no list. */
static Err count_sliding(const Draft *d, int64_t *sliding, int64_t *n)
{
    static const char sliding_word[] = "sliding_attention", full[] = "full_attention";
    *n = 0;
    *sliding = d->layer_types ? 0 : -1;
    for (const char *at = d->layer_types ? d->layer_types : ""; *at; (*n)++) {
        const size_t length = strcspn(at, ",");
        const bool is = length == strlen(sliding_word) && strncmp(at, sliding_word, length) == 0;
        if (!is && (length != strlen(full) || strncmp(at, full, length) != 0))
            return err_fail(ERR_CONFIG,
                            "%s: layer_types has %.*s: this version supports full_attention and "
                            "sliding_attention",
                            d->c.name, (int)(length < 80 ? length : 80), at);
        *sliding += is;
        at += length + (at[length] == ',');
    }
    return OK;
}

/* All layers have one window, or none has any. A mix is an error, because all layers share one
 * graph. */
static Err resolve_window(Draft *d)
{
    ModelConfig *c = &d->c;
    const bool qwen = c->family == FAMILY_QWEN2 || c->family == FAMILY_QWEN3 ||
                      c->family == FAMILY_QWEN2_MOE || c->family == FAMILY_QWEN3_MOE;
    int64_t listed, sliding;
    TRY(count_sliding(d, &sliding, &listed));
    if (qwen && d->use_window && c->window == 0)
        return err_fail(ERR_CONFIG, "%s: use_sliding_window=true without sliding_window; set it",
                        c->name);
    if (qwen && !d->use_window) c->window = 0;
    if (listed && listed != c->n_layers)
        return err_fail(ERR_CONFIG,
                        "%s: layer_types names %lld layers, num_hidden_layers is %lld; make them "
                        "equal or set model.layer_types=null",
                        c->name, (long long)listed, (long long)c->n_layers);
    if (sliding < 0) { /* no list: derived from max_window_layers, as Qwen's class does */
        const int64_t from = qwen ? d->window_layers : 0;
        if (qwen && c->window && from < 0)
            return err_fail(ERR_CONFIG, "%s: use_sliding_window=true needs max_window_layers",
                            c->name);
        sliding = c->window == 0 || from >= c->n_layers ? 0 : c->n_layers - from;
    } else if (sliding && c->window == 0)
        return err_fail(
            ERR_CONFIG,
            "%s: layer_types has sliding_attention, but there is no sliding_window; set it",
            c->name);
    if (sliding && sliding != c->n_layers)
        return err_fail(
            ERR_CONFIG,
            "%s: %lld of %lld layers have a sliding window; this version gives all "
            "layers one window or none: max_window_layers=0 or use_sliding_window=false",
            c->name, (long long)sliding, (long long)c->n_layers);
    if (sliding == 0) c->window = 0;
    return OK;
}

static Err resolve_heads(ModelConfig *c)
{
    if (c->n_kv_heads == 0) c->n_kv_heads = c->n_heads;
    if (c->ff_width == 0) c->ff_width = 4 * c->width;
    if (c->head_size != 0) return OK;
    c->head_size = c->width / c->n_heads;
    if (c->width % c->n_heads == 0) return OK;
    const int64_t below = c->head_size * c->n_heads, above = below + c->n_heads;
    char near[48];
    return err_fail(
        ERR_CONFIG, "%s: %s=%lld does not divide into %s=%lld heads; the nearest that does: %s%s",
        c->name, key_of(c, "hidden_size"), (long long)c->width, key_of(c, "num_attention_heads"),
        (long long)c->n_heads, near_text(below ? below : above, above, near),
        c->family == FAMILY_GPT2 ? "" : "; or set head_dim");
}

/* Checks the list of layers without experts; an empty one is none. */
static Err resolve_dense_layers(ModelConfig *c)
{
    const char *list = c->experts.dense_layers;
    if (!list) return OK;
    for (const char *at = list; *at; at += *at == ',') {
        const size_t digits = strspn(at, "0123456789");
        const long long layer = digits ? strtoll(at, NULL, 10) : -1;
        if (digits == 0 || (at[digits] != ',' && at[digits] != '\0') || layer >= c->n_layers)
            return err_fail(ERR_CONFIG,
                            "%s: mlp_only_layers=[%.80s]: numbers of layers, from 0 to %lld, are "
                            "possible",
                            c->name, list, (long long)c->n_layers - 1);
        at += digits;
    }
    if (!*list) c->experts.dense_layers = NULL;
    return OK;
}

/* A patch covers whole latents; a token's place is its patch of the frame. */
static Err resolve_clip(ModelConfig *c)
{
    const ClipConfig *x = &c->clip;
    const struct {
        const char *key;
        int64_t n;
    } side[] = {{"latent_height", x->height}, {"latent_width", x->width}};
    for (int i = 0; i < 2; i++)
        if (side[i].n % x->patch != 0)
            return err_fail(ERR_CONFIG,
                            "%s: patch_size=%lld does not divide %s=%lld; set a patch_size that "
                            "divides both latent_height and latent_width",
                            c->name, (long long)x->patch, side[i].key, (long long)side[i].n);
    if (clip_patch_size(x) > MAX_PATCH)
        return err_fail(ERR_CONFIG,
                        "%s: patch_size=%lld: a patch has %lld numbers, the most is %d; set a "
                        "smaller patch_size",
                        c->name, (long long)x->patch, (long long)clip_patch_size(x), MAX_PATCH);
    if ((x->text_length > 0) != (x->text_width > 0))
        return err_fail(ERR_CONFIG,
                        "%s: text_length=%lld and text_width=%lld: set both, or none for a model "
                        "without text",
                        c->name, (long long)x->text_length, (long long)x->text_width);
    c->full_mask = true;
    c->places = x->height / x->patch * (x->width / x->patch);
    c->max_positions = c->frames * c->places;
    if (c->max_positions > INT32_MAX)
        return err_fail(ERR_CONFIG, "%s: a clip of %lld tokens; the most is %d", c->name,
                        (long long)c->max_positions, INT32_MAX);
    return OK;
}

Err draft_resolve(Draft *d)
{
    TRY(resolve_heads(&d->c));
    if (d->c.family == FAMILY_STDIT) return resolve_clip(&d->c);
    if (d->c.family == FAMILY_GPT2) return OK;
    /* attention_bias covers all four projections in the families that have this key */
    if (d->c.family == FAMILY_LLAMA || d->c.family == FAMILY_QWEN3 ||
        d->c.family == FAMILY_QWEN3_MOE || d->c.family == FAMILY_OLMOE ||
        d->c.family == FAMILY_DOTS1)
        d->c.o_bias = d->c.qkv_bias;
    if (d->c.experts.n && d->c.experts.width == 0) d->c.experts.width = d->c.ff_width;
    if (d->c.experts.n_shared)
        d->c.experts.shared_width = d->c.experts.n_shared * d->c.experts.width;
    TRY(resolve_dense_layers(&d->c));
    TRY(resolve_rope(d));
    return resolve_window(d);
}

/* Finds the divisors of n nearest to `target`, below and above. */
static void near_divisors(int64_t n, int64_t target, int64_t *below, int64_t *above)
{
    *below = 1, *above = n;
    for (int64_t i = 1; i <= n; i++) {
        if (n % i != 0) continue;
        if (i <= target) *below = i;
        if (i >= target && i < *above) *above = i;
    }
}

static Err check_positive(const ModelConfig *c)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"num_hidden_layers", c->n_layers},
                 {"hidden_size", c->width},
                 {"num_attention_heads", c->n_heads},
                 {"num_key_value_heads", c->n_kv_heads},
                 {"head_dim", c->head_size},
                 {"intermediate_size", c->ff_width},
                 {"vocab_size", c->frames ? 1 : c->vocab},
                 {"max_position_embeddings", c->max_positions}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1)
            return err_fail(ERR_CONFIG, "%s: %s=%lld; the least is 1", c->name,
                            key_of(c, sizes[i].key), (long long)sizes[i].value);
    return OK;
}

/* Groups of a router are equal, and those that are chosen have room for a token's choices. */
static Err check_groups(const ModelConfig *c)
{
    const ExpertConfig *x = &c->experts;
    int64_t below, above;
    char near[48];
    if (x->groups <= 1) return OK;
    if (x->n % x->groups != 0) {
        near_divisors(x->n, x->groups, &below, &above);
        return err_fail(ERR_CONFIG,
                        "%s: n_group=%lld does not divide n_routed_experts=%lld; the nearest that "
                        "does: %s",
                        c->name, (long long)x->groups, (long long)x->n,
                        near_text(below, above, near));
    }
    const int64_t each = x->n / x->groups, needed = (x->chosen + each - 1) / each;
    if (each < x->group_best)
        return err_fail(ERR_CONFIG,
                        "%s: n_group=%lld of %lld experts: a group's score is the sum of its %lld "
                        "best, and it has %lld; set n_group=%lld or less",
                        c->name, (long long)x->groups, (long long)x->n, (long long)x->group_best,
                        (long long)each, (long long)(x->n / x->group_best));
    if (x->chosen_groups < needed || x->chosen_groups > x->groups)
        return err_fail(ERR_CONFIG,
                        "%s: topk_group=%lld of n_group=%lld groups of %lld experts, and "
                        "num_experts_per_tok=%lld; topk_group can be %lld to %lld",
                        c->name, (long long)x->chosen_groups, (long long)x->groups, (long long)each,
                        (long long)x->chosen, (long long)needed, (long long)x->groups);
    return OK;
}

Err model_config_check(const ModelConfig *c)
{
    int64_t below, above;
    char near[48];
    TRY(check_positive(c));
    if (c->n_heads % c->n_kv_heads != 0) {
        near_divisors(c->n_heads, c->n_kv_heads, &below, &above);
        return err_fail(ERR_CONFIG,
                        "%s: num_attention_heads=%lld does not divide by num_key_value_heads=%lld; "
                        "the nearest that does: %s",
                        c->name, (long long)c->n_heads, (long long)c->n_kv_heads,
                        near_text(below, above, near));
    }
    if (c->experts.chosen > c->experts.n)
        return err_fail(ERR_CONFIG,
                        "%s: num_experts_per_tok=%lld of %lld experts; a token has each expert at "
                        "most once; set model.num_experts_per_tok=%lld or less",
                        c->name, (long long)c->experts.chosen, (long long)c->experts.n,
                        (long long)c->experts.n);
    TRY(check_groups(c));
    if (c->family == FAMILY_GPT2 && c->n_heads * c->head_size != c->width)
        return err_fail(ERR_CONFIG, "%s: n_head=%lld heads of %lld are not n_embd=%lld", c->name,
                        (long long)c->n_heads, (long long)c->head_size, (long long)c->width);
    if (c->family == FAMILY_STDIT && c->n_heads * c->head_size != c->width)
        return err_fail(ERR_CONFIG, "%s: %lld heads of %lld are not hidden_size=%lld", c->name,
                        (long long)c->n_heads, (long long)c->head_size, (long long)c->width);
    if (c->family == FAMILY_GPT2 || c->family == FAMILY_STDIT) return OK;
    if (c->head_size % 2 != 0)
        return err_fail(ERR_CONFIG,
                        "%s: a head size of %lld is odd, and rope rotates pairs; the nearest even "
                        "head_dim: %s",
                        c->name, (long long)c->head_size,
                        near_text(c->head_size > 1 ? c->head_size - 1 : 2, c->head_size + 1, near));
    return OK;
}
