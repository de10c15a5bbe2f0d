/* config.h -- the settings of a run: defaults, then one strict YAML file, a plan, arguments.
 *
 *     keys.def   --> Config {optim_lr = 3e-4, ...}            origin "default"
 *     run.yaml   --> optim:\n  lr: 1e-3                        origin "run.yaml:4"
 *     plan.yaml  --> mesh.tp: 8                                origin "plan.yaml:11"
 *     arguments  --> optim.lr=2e-3                             origin "command line"
 *
 * A key is a plain member, section_name: no code looks keys up by text. A key that is unknown or
 * given twice, and a value of the wrong type, out of range or not supported by this version, is
 * refused. The message names the place, the key, the value and the way out. model.* keys that are
 * fields of a config.json are passed unread to model/. */
#ifndef CLI_CONFIG_CONFIG_H
#define CLI_CONFIG_CONFIG_H

#include "base/arena.h"
#include "model/config.h"

#define SECTION(section, meaning)
#define KEY(section, name, type, fallback, low, high, works, why, meaning)
#define OPTION(section, name, id, text)

/* The values of all CHOICE keys. Those of one key are consecutive, in the order of keys.def. */
#undef OPTION
#define OPTION(section, name, id, text) id,
typedef enum {
#include "cli/config/keys.def"
    N_OPTIONS
} Option;
#undef OPTION
#define OPTION(section, name, id, text)

/* KEY_optim_lr and so on: indices of `origin` and of the table in keys.c. */
#undef KEY
#define KEY(section, name, type, fallback, low, high, works, why, meaning) KEY_##section##_##name,
typedef enum {
#include "cli/config/keys.def"
    N_KEYS
} KeyId;
#undef KEY

typedef struct {
    int n;
    const char *const *at;
    const char *text; /* joined by commas; a comma in an item follows a backslash */
} TextList;

/* A value for some units only (layer_rules.h). Units are counted from the embedding on, 0. */
typedef struct {
    KeyId key;
    const char *item, *value; /* "3@layers:0-15", "3" */
    int first, last;          /* RULE_HEAD: the last unit, whose number depends on the model */
} LayerRule;
enum { MAX_LAYER_RULES = 2048, RULE_HEAD = -1 };

#define TYPE_INT int64_t
#define TYPE_FLOAT double
#define TYPE_BOOL bool
#define TYPE_TEXT const char *
#define TYPE_CHOICE Option
#define TYPE_LIST TextList

#define KEY(section, name, type, fallback, low, high, works, why, meaning)                         \
    TYPE_##type section##_##name;
typedef struct {
#include "cli/config/keys.def"
    const char *origin[N_KEYS];     /* "default", "run.yaml:4" or "command line" */
    const ModelField *model_fields; /* model.* keys that are no rows here, for model_config_load */
    int n_model_fields;
    bool dp_follows;       /* mesh.dp is -1: it follows from the number of ranks */
    struct PlanFile *plan; /* plan_file.h; NULL: none */
    LayerRule *layer_rule; /* [n_layer_rules] */
    int n_layer_rules;
    Arena *arena; /* of its texts */
} Config;
#undef KEY
#undef OPTION
#undef SECTION

/* The sources of a configuration. */
typedef struct {
    const char *file;       /* NULL: none */
    const char *file_name;  /* of the file, in messages; NULL: its path */
    const char *plan;       /* a plan file, which decides mesh.*, parallel.* and batch.micro */
    const char *const *set; /* [n_set]: section.key=value */
    int n_set;
    const char *plan_text; /* the text of the plan, if it is not in the file yet; else NULL */
} ConfigSource;

/* Local. ERR_CONFIG if an argument contradicts the plan. Whether the plan is for this model and
 * batch is checked by config_model. The rest is as for config_load. */
Err config_open(const ConfigSource *from, Arena *a, Config *out);
/* Local. The same without a plan. `path` may be NULL: no file. Each of `set` is section.key=value.
 * Texts are in the arena. Settles the numbers that follow from several keys: run_ranks, run_threads
 * and mesh_dp, if they are "auto" or -1; mesh_dp_shard is mesh_dp if dp is one axis. The
 * config.yaml of a run folder may have key names of earlier versions (renamed.h). */
Err config_load(const char *path, const char *const *set, int n_set, Arena *a, Config *out);
/* Local. The keys of model.ignore among arguments, for a folder that is opened before the other
 * keys can be read. */
Err config_ignored_keys(const char *const *set, int n_set, Arena *a, IgnoredKeys *out);
/* Local. The model of the run. A model of clips sets data_seq_len to the tokens of a clip.
 * ERR_CONFIG if a sequence has more tokens than the model has positions, if keys are set that mean
 * nothing to the model, or if the configuration has a plan that was made for another run. */
Err config_model(Config *c, Arena *a, ModelConfig *out);
/* Local. Micro-batches per step of each rank; the last one may be short or empty. */
int64_t config_micros(const Config *c);

#endif
