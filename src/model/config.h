/* config.h -- what a model is: its family and its sizes.
 *
 *     preset "llama3-8b"  --+
 *     config.json           +--> entries (key, value, origin) --> fields of ModelConfig --> checked
 *     model.KEY=VALUE     --+        later sources win              one table of rows
 *
 * All sources speak the words of Hugging Face's config.json, so there is one way in. A key that we
 * do not know, or a feature that we do not honour, is an error that names it: a model that is not
 * the one asked for is never built.
 *
 * Mistral, Qwen2 and Qwen3 are options of one llama builder: read the options, not the family. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/text.h"
#include "device/device.h"

typedef enum {
    FAMILY_GPT2,
    FAMILY_LLAMA,
    FAMILY_MISTRAL,
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    N_FAMILIES
} Family;

typedef struct {
    double theta;
    RopeScaling scaling;
    double factor;    /* linear, llama3; 1 when plain */
    double low, high; /* llama3: low_freq_factor, high_freq_factor */
    int64_t original; /* llama3: positions before scaling */
} Rope;

typedef struct {
    const char *name; /* the preset or the path it came from: for messages */
    Family family;
    int64_t n_layers;
    int64_t width; /* of the residual stream */
    int64_t n_heads, n_kv_heads;
    int64_t head_size; /* n_heads * head_size need not be width (Qwen3) */
    int64_t ff_width;
    int64_t vocab;
    int64_t max_positions; /* rows of GPT-2's position table; else the longest context promised */
    double norm_eps;
    Rope rope;       /* not read for GPT-2, whose positions are learned */
    bool tied;       /* the head is the embedding's weight */
    bool qkv_bias;   /* q_proj, k_proj, v_proj */
    bool o_bias;     /* o_proj; GPT-2's c_proj */
    bool mlp_bias;   /* every product of the feed-forward part */
    bool qk_norm;    /* rmsnorm of each head of q and k, before rope (Qwen3) */
    int64_t window;  /* a query at i sees keys j with i - window < j <= i; 0: all up to i */
    double init_std; /* of initial weights */
} ModelConfig;

/* One model.KEY=VALUE: the words of config.json, nested ones with a dot (rope_scaling.factor). */
typedef struct {
    const char *key, *value;
    const char *origin; /* "run.yaml:12" or the argument: for messages */
    int level; /* a higher level wins; equal levels must not contradict. 1 file, 2 argument */
} ModelField;

/* Local. `name` is a preset, a config.json or a folder that holds one; `set` is laid over it,
 * lower levels first. Text of *out lives in the arena. */
Err model_config_load(const char *name, const ModelField *set, int n, Arena *a, ModelConfig *out);
/* Local. The same for those who do not train: dropout, which is of training alone, may be
 * anything. */
Err model_config_use(const char *name, Arena *a, ModelConfig *out);
/* Local. Likewise, of the text of a config.json; `name` is its name, which must outlive *out. */
Err model_config_parse(const char *name, const char *text, size_t bytes, Arena *a,
                       ModelConfig *out);
/* Local. Sizes that fit together; a refusal names the nearest that do. model_config_load ends with
 * it; a ModelConfig made by hand may ask too. */
Err model_config_check(const ModelConfig *c);
/* Local. A config.json, on one line, that model_config_load makes the same model of. */
void model_config_json(const ModelConfig *c, Text *out);
/* Local. A few lines that say the model in words. */
void model_config_print(const ModelConfig *c, Text *out);

const char *family_name(Family family); /* as model_type in config.json */

/* Local. The presets: name, and the config.json words that make it; NULL past the last. */
const char *model_preset_name(int i);
const char *model_preset_words(int i);

/* Local. ERR_CONFIG, with the nearest one, unless some family knows the key. */
Err model_key_check(const char *key, const char *origin);

/* What may be written in a config.json or as model.KEY; false past the last. Bookkeeping keys,
 * which change nothing, are not among them. */
typedef struct {
    const char *key, *meaning;
    const char *only;  /* the legal values, for features of which we honour but some; else NULL */
    unsigned families; /* bit FAMILY_x: the families that know it */
} ModelKey;
bool model_key(int i, ModelKey *out);

#endif
