/* config.h -- the configuration of a model: its family and its sizes.
 *
 *     preset "llama3-8b"  --+
 *     config.json           +--> entries (key, value, origin) --> fields of ModelConfig --> checked
 *     model.KEY=VALUE     --+        later sources win              one table of rows
 *
 * All sources use the keys of Hugging Face's config.json, so one parser serves them all. An unknown
 * key or an unsupported feature is an error that names it, unless the caller ignores the key: no
 * model is built that differs from the requested one.
 *
 * All families but GPT-2 and stdit are options of the llama builder. Code tests the options, not
 * the family. */
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
    FAMILY_MIXTRAL,
    FAMILY_QWEN2_MOE,
    FAMILY_QWEN3_MOE,
    FAMILY_OLMOE,
    FAMILY_STDIT,
    FAMILY_DOTS1,
    N_FAMILIES
} Family;

typedef struct {
    double theta;
    RopeScaling scaling;
    double factor;    /* linear, llama3; 1 without scaling */
    double low, high; /* llama3: low_freq_factor, high_freq_factor */
    int64_t original; /* llama3: original_max_position_embeddings, the context before scaling */
} Rope;

/* The mixture of experts of a model; n is 0 in a dense one. */
typedef struct {
    int64_t n, chosen;        /* experts of a layer; of a token */
    int64_t width;            /* feed-forward width of an expert */
    int64_t shared_width;     /* of the expert that every token has; 0: none */
    int64_t n_shared;         /* dots1: it is written as so many experts of the width */
    bool shared_gate;         /* its output is multiplied by a sigmoid of one number per token */
    RouteScore score;         /* device/route.h has the formulas */
    bool renormalize;         /* the gates of a token sum to 1 */
    double scaling;           /* of the gates */
    int64_t groups;           /* experts are chosen from the best groups; 0: no groups */
    int64_t chosen_groups;    /* of these */
    int64_t group_best;       /* largest scores that make up a group's; 0: chosen / chosen_groups */
    bool bias;                /* added to scores for the choice alone: state, updated by load */
    int64_t dense_first;      /* the first layers have no experts */
    int64_t sparse_step;      /* every n-th layer has experts; 0 or 1: all */
    const char *dense_layers; /* "0,5": further layers without experts; NULL: none */
    /* Settings of training, not of the model. */
    double aux_loss, z_loss; /* coefficients of the router's losses */
    double capacity;         /* rows of an expert as a factor of its even share; 0: no limit */
    bool drop_by_gate;       /* beyond the capacity, choices with small gates are dropped */
    bool balance_global;     /* the balance loss counts micro-batches of all data-parallel ranks */
    int view; /* of the mesh, that of the experts' weights: the job's choice (layout/mesh.h) */
} ExpertConfig;

/* The latents of a clip and their tokens, and its text; of a diffusion model (model/stdit.c). */
typedef struct {
    int64_t height, width, channels; /* latents of a frame */
    int64_t patch;                   /* a token is patch x patch latents of a frame */
    int64_t dims;        /* of attention: 2: space and time; 3: height, width and time */
    int64_t text_length; /* states of a clip's text; 0: no text */
    int64_t text_width;  /* of a state */
} ClipConfig;

enum { MAX_PATCH = 1 << 14, MAX_TEXT_WIDTH = 1 << 14 }; /* elements of a patch, of a state */

/* Elements of a token's patch. */
static inline int64_t clip_patch_size(const ClipConfig *c)
{
    return c->channels * c->patch * c->patch;
}

struct FamilyBuilder; /* model/build.h */

typedef struct {
    const char *name; /* the preset or path that it came from; for messages */
    Family family;
    const struct FamilyBuilder *builder; /* of a program with its own units; NULL: the family's */
    int64_t n_layers;
    int64_t width; /* of the residual stream */
    int64_t n_heads, n_kv_heads;
    int64_t head_size; /* n_heads * head_size need not be width (Qwen3) */
    int64_t ff_width;
    int64_t vocab;
    int64_t max_positions; /* rows of GPT-2's position table; else the longest context that the
                            * model supports */
    bool fp8_marks;        /* layers hold marks of delayed scaling, a setting of training */
    double norm_eps;
    Rope rope;       /* unused by GPT-2, whose positions are learned */
    bool tied;       /* the head's weight is the embedding's */
    bool qkv_bias;   /* biases of q_proj, k_proj, v_proj */
    bool o_bias;     /* bias of o_proj; GPT-2's c_proj */
    bool mlp_bias;   /* biases of all projections of the feed-forward part */
    bool qk_norm;    /* rmsnorm of each head of q and k, before rope (Qwen3) */
    bool q_norm;     /* rmsnorm of all heads of q together, and of k (OLMoE) */
    int64_t window;  /* sliding window: query i attends to keys j with i - window < j <= i; 0: all j
                      * <= i */
    bool full_mask;  /* a query attends to all keys of its sequence, also to later ones */
    double init_std; /* standard deviation of initial weights */
    ExpertConfig experts;
    /* A sequence is a clip of frames x places tokens; 0 in models of text. */
    int64_t frames, places;
    ClipConfig clip;
} ModelConfig;

/* One setting model.KEY=VALUE. Keys are those of config.json, nested ones with a dot
 * (rope_scaling.factor). */
typedef struct {
    const char *key, *value;
    const char *origin; /* "run.yaml:12" or the argument; for messages */
    int level;          /* 1 file, 2 argument; the higher level wins, equal levels must agree */
} ModelField;

/* Keys of a config.json that are skipped although they are unknown or their feature is unsupported:
 * the caller decides that they change nothing. A key that this version reads cannot be skipped. */
typedef struct {
    const char *const *key;
    int n;
} IgnoredKeys;

typedef struct {
    const char *name;      /* a preset, a config.json or a folder that contains one */
    const ModelField *set; /* overrides, lower levels first */
    int n_set;
    IgnoredKeys ignore;
    bool inference; /* dropout affects training only, so any value is accepted */
} ModelSource;

/* Local. Strings of *out are stored in the arena. */
Err model_config_open(const ModelSource *from, Arena *a, ModelConfig *out);
/* Local. The same for training, with no ignored key. */
Err model_config_load(const char *name, const ModelField *set, int n, Arena *a, ModelConfig *out);
/* Local. The same for inference. */
Err model_config_inference(const char *name, Arena *a, ModelConfig *out);
/* Local. As model_config_inference, from the text of a config.json. `name` is used in messages and
 * must outlive *out. */
Err model_config_parse(const char *name, const char *text, size_t bytes, Arena *a,
                       ModelConfig *out);
/* Local. Checks that the sizes fit together. An error names the nearest sizes that do.
 * model_config_load calls it; callers that fill a ModelConfig themselves should too. */
Err model_config_check(const ModelConfig *c);
/* Local. Writes a config.json on one line. model_config_load builds the same model from it. */
void model_config_json(const ModelConfig *c, Text *out);
/* Local. Writes a description of the model in a few lines of plain text. */
void model_config_print(const ModelConfig *c, Text *out);

const char *family_name(Family family); /* the model_type of config.json */

/* Local. Preset i: its name, and its config.json keys as "key=value ..."; NULL past the last. */
const char *model_preset_name(int i);
const char *model_preset_words(int i);

/* Local. ERR_CONFIG, with the nearest key, unless some family has this key. */
Err model_key_check(const char *key, const char *origin);

/* Local. True if a field of the model is read from this key of a config.json, or from members of
 * it. */
bool model_key_is_read(const char *key, Family family);

/* Local. Key i that a config.json or model.KEY may set; false past the last. Bookkeeping keys,
 * which change nothing, are not listed. */
typedef struct {
    const char *key, *meaning;
    const char *only;  /* the supported values, if only some are supported; else NULL */
    unsigned families; /* bit FAMILY_x: families that have the key */
} ModelKey;
bool model_key(int i, ModelKey *out);

#endif
