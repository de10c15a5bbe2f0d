/* config.c -- overlays defaults, the file and the arguments, then settles the values that follow
 * from several keys. */
#define _POSIX_C_SOURCE 200809L /* sysconf */
#include "base/cores.h"
#include "base/text.h"
#include "cli/config/job.h"
#include "cli/config/mesh.h"
#include "cli/config/plan_file.h"
#include "cli/config/print.h"
#include "cli/config/renamed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "job/batch.h"

enum { LEVEL_FILE = 1, LEVEL_ARGUMENT = 2, MAX_FIELDS = 256 };

typedef struct {
    Config c;
    Arena *arena;
    ModelField *fields;
    int level;                /* of the source that is being read */
    const char *seen[N_KEYS]; /* origin of the key in this source; NULL: not given so far */
    const PlanFile *plan;     /* NULL: none */
} Loader;

static Err set_default(Loader *l, KeyId key)
{
    const WrittenValue value = {.text = key_at(key)->fallback, .origin = "default"};
    return key_set(key, &value, l->arena, &l->c);
}

static Err set_defaults(Loader *l)
{
    for (int i = 0; i < N_KEYS; i++) TRY(set_default(l, (KeyId)i));
    return OK;
}

static Err twice(const char *origin, const char *section, const char *name, const char *first)
{
    return err_fail(ERR_CONFIG, "%s: %s.%.80s is given again (first: %s); keep one", origin,
                    section, name, first);
}

/* True for texts that are a number, a boolean or null when they have no quotes: "2" is not 2. */
static bool looks_typed(const char *text)
{
    return strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0 ||
           (*text && strspn(text, "+-.0123456789eE") == strlen(text));
}

/* Collects model.num_hidden_layers and the like. Only model/ interprets their values, because types
 * and limits depend on the family. */
static Err add_field(Loader *l, const char *name, const WrittenValue *value)
{
    TRY(model_key_check(name, value->origin));
    for (int i = 0; i < l->c.n_model_fields; i++)
        if (l->fields[i].level == l->level && strcmp(l->fields[i].key, name) == 0)
            return twice(value->origin, "model", name, l->fields[i].origin);
    if (value->sequence)
        return err_fail(ERR_CONFIG,
                        "%s: model.%s: a list, and the key takes one value: items with commas, as "
                        "0,1",
                        value->origin, name);
    if (!*value->text)
        return err_fail(ERR_CONFIG, "%s: model.%s: no value; write one or remove the key",
                        value->origin, name);
    if (value->quoted && looks_typed(value->text))
        return err_fail(ERR_CONFIG, "%s: model.%s=%.80s: a text in quotes; remove the quotes",
                        value->origin, name, value->text);
    if (l->c.n_model_fields == MAX_FIELDS)
        return err_fail(ERR_CONFIG,
                        "%s: model.%s: more than %d fields; write a config.json instead",
                        value->origin, name, MAX_FIELDS);
    l->fields[l->c.n_model_fields++] = (ModelField){name, value->text, value->origin, l->level};
    return OK;
}

static Err value_text(const Loader *l, KeyId key, const char **out)
{
    Text t = text_in(l->arena);
    config_print_value(&l->c, key, &t);
    return text_done(&t, out);
}

/* Sets a key that the plan decides to the value that it has already, or refuses. */
static Err repeat_plan(Loader *l, KeyId key, const WrittenValue *value)
{
    const char *before, *after, *origin = l->c.origin[key];
    TRY(value_text(l, key, &before));
    TRY(key_set(key, value, l->arena, &l->c));
    TRY(value_text(l, key, &after));
    if (strcmp(before, after) == 0) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: %s=%.80s: the plan decides it: %s=%.80s (%s); edit %s, or leave one of "
                    "the two out",
                    value->origin, key_at(key)->path, value->text, key_at(key)->path, before,
                    strcmp(origin, "default") == 0 ? "the default, since it is not in the plan"
                                                   : origin,
                    l->plan->path);
}

static Err set_one(Loader *l, const char *section, const char *name, const WrittenValue *value)
{
    TRY(renamed_refuse(section, name, value, l->arena));
    const int id = key_find(section, name);
    if (id < 0 && strcmp(section, "model") == 0) return add_field(l, name, value);
    if (id < 0) return key_unknown(value->origin, section, name);
    if (l->seen[id]) return twice(value->origin, section, name, l->seen[id]);
    l->seen[id] = value->origin;
    if (l->plan && l->level == LEVEL_ARGUMENT && plan_decides((KeyId)id))
        return repeat_plan(l, (KeyId)id, value);
    return key_set((KeyId)id, value, l->arena, &l->c);
}

/* Names a file by its contents, if the user has not written its path. */
static Err name_file(const char *name, Arena *a, KeyValues *pairs)
{
    for (int i = 0; name && i < pairs->n; i++) {
        Text t = text_in(a);
        text_add(&t, "%s:%d", name, pairs->at[i].line);
        TRY(text_done(&t, &pairs->at[i].value.origin));
    }
    return OK;
}

static Err set_file(Loader *l, const ConfigSource *from)
{
    KeyValues pairs;
    TRY(pairs_read(from->file, l->arena, &pairs));
    TRY(name_file(from->file_name, l->arena, &pairs));
    if (config_is_saved(from->file)) TRY(pairs_rename(&pairs, l->arena));
    l->level = LEVEL_FILE;
    for (int i = 0; i < pairs.n; i++)
        TRY(set_one(l, pairs.at[i].section, pairs.at[i].name, &pairs.at[i].value));
    return OK;
}

/* Replaces the keys that a plan decides: by those of the plan, or by their defaults. */
static Err set_plan(Loader *l, const ConfigSource *from)
{
    PlanFile *plan;
    TRY(ARENA_NEW(l->arena, 1, &plan));
    TRY(plan_file_read(from->plan, from->plan_text, l->arena, plan));
    for (int i = 0; i < N_KEYS; i++)
        if (plan_decides((KeyId)i)) TRY(set_default(l, (KeyId)i));
    memset(l->seen, 0, sizeof l->seen);
    for (int i = 0; i < plan->n; i++)
        TRY(set_one(l, plan->at[i].section, plan->at[i].name, &plan->at[i].value));
    l->plan = plan;
    l->c.plan = plan;
    return OK;
}

/* Refuses bytes that no checkpoint can store, because its manifest is JSON. The first save would be
 * too late for this error. */
static Err check_utf8(const char *section, const char *name, const char *value)
{
    const size_t length = strlen(value), valid = text_utf8_bytes(value, length);
    if (valid == length) return OK;
    return err_fail(
        ERR_CONFIG,
        "command line: %.80s.%.80s: byte 0x%02X is not UTF-8, and checkpoints store all "
        "values as UTF-8; rename the file, or give a link to it",
        section, name, (unsigned char)value[valid]);
}

/* Splits section.key=value. The key may contain dots (rope_scaling.factor), the value any
 * character. */
static Err set_argument(Loader *l, const char *argument)
{
    WrittenValue value = {.origin = "command line"};
    const char *copy;
    TRY(arena_string(l->arena, argument, &copy));
    char *dot = strchr(copy, '.'), *equals = strchr(copy, '=');
    if (!equals || !dot || dot > equals || dot == copy || dot + 1 == equals)
        return err_fail(ERR_CONFIG,
                        "command line: %.80s: must be section.key=value, as optim.lr=1e-3 (`sheaf "
                        "help` lists the sections)",
                        argument);
    *dot = *equals = '\0';
    value.text = equals + 1;
    TRY(check_utf8(copy, dot + 1, value.text));
    return set_one(l, copy, dot + 1, &value);
}

static Err set_arguments(Loader *l, const char *const *set, int n)
{
    memset(l->seen, 0, sizeof l->seen);
    l->level = LEVEL_ARGUMENT;
    for (int i = 0; i < n; i++) TRY(set_argument(l, set[i]));
    return OK;
}

/* True for "full,-name,...": all but these. The compiler checks the names and their signs. */
static bool has_exceptions(const TextList *list)
{
    return list->n > 1 && strcmp(list->at[0], "full") == 0 && list->at[1][0] == '-';
}

/* Refuses a list that mixes patterns with one of the first n_words of `word`, or that is empty: a
 * word like `full` decides for all values, so it must be the only item, or have exceptions. */
static Err check_patterns(const Config *c, KeyId key, const TextList *list, int n_words)
{
    static const char *const word[] = {"none", "selective", "full"};
    for (int i = has_exceptions(list) && n_words > 2; list->n > 1 && i < list->n; i++)
        for (int w = 0; w < n_words; w++)
            if (strcmp(list->at[i], word[w]) == 0)
                return err_fail(ERR_CONFIG,
                                "%s: %s=%.80s: %s stands alone; give it alone or give patterns "
                                "alone",
                                c->origin[key], key_at(key)->path, list->text, word[w]);
    if (list->n > 0) return OK;
    return err_fail(ERR_CONFIG, "%s: %s is empty; write none", c->origin[key], key_at(key)->path);
}

static Err settle(Config *c)
{
    if (!*c->model_name && *c->model_init) { /* the folder of the weights has a config.json */
        c->model_name = c->model_init;
        c->origin[KEY_model_name] = c->origin[KEY_model_init];
    }
    if (!*c->model_name)
        return err_fail(ERR_CONFIG,
                        "model.name is not set; set it to a preset (model.name=gpt2-tiny; "
                        "`sheaf help model.name` lists them) or to a config.json");
    if (c->optim_min_lr > c->optim_lr)
        return err_fail(ERR_CONFIG,
                        "%s: optim.min_lr=%g is above optim.lr=%g (%s); the learning rate decays: "
                        "set it to %g or less",
                        c->origin[KEY_optim_min_lr], c->optim_min_lr, c->optim_lr,
                        c->origin[KEY_optim_lr], c->optim_lr);
    TRY(check_patterns(c, KEY_parallel_recompute, &c->parallel_recompute, 3));
    TRY(check_patterns(c, KEY_parallel_zero_weights, &c->parallel_zero_weights, 1));
    TRY(check_patterns(c, KEY_parallel_offload, &c->parallel_offload, 1));
    TRY(check_patterns(c, KEY_precision_fp8, &c->precision_fp8, 1));
    TRY(config_check_fp8(c));
    TRY(config_settle_mesh(c));
    if (c->run_threads == 0) {
        const int64_t cores = cores_usable();
        c->run_threads = cores > c->run_ranks ? cores / c->run_ranks : 1;
    }
    return OK;
}

Err config_load(const char *path, const char *const *set, int n_set, Arena *a, Config *out)
{
    return config_open(&(ConfigSource){.file = path, .set = set, .n_set = n_set}, a, out);
}

Err config_open(const ConfigSource *from, Arena *a, Config *out)
{
    Loader l = {.arena = a, .c.arena = a};
    TRY(ARENA_NEW(a, MAX_FIELDS, &l.fields));
    TRY(set_defaults(&l));
    if (from->file) TRY(set_file(&l, from));
    if (from->plan) TRY(set_plan(&l, from));
    TRY(set_arguments(&l, from->set, from->n_set));
    l.c.model_fields = l.fields;
    TRY(settle(&l.c));
    *out = l.c;
    return OK;
}

Err config_ignored_keys(const char *const *set, int n_set, Arena *a, IgnoredKeys *out)
{
    static const char key[] = "model.ignore=";
    Config c;
    *out = (IgnoredKeys){0};
    for (int i = 0; i < n_set; i++) {
        const WrittenValue value = {.text = set[i] + sizeof key - 1, .origin = "command line"};
        if (strncmp(set[i], key, sizeof key - 1) != 0) continue;
        TRY(key_set(KEY_model_ignore, &value, a, &c));
        *out = (IgnoredKeys){c.model_ignore.at, c.model_ignore.n};
    }
    return OK;
}

/* Further rounds that there can never be. */
static Err check_overflow(const Config *c)
{
    if (c->parallel_overflow != OVERFLOW_ROUNDS) return OK;
    if (c->mesh_ep == 1)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.overflow=rounds: has no effect with mesh.ep=1, where every "
                        "rank has all experts and room for all rows; set mesh.ep, or remove it",
                        c->origin[KEY_parallel_overflow]);
    if (c->parallel_expert_rows <= 0)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.overflow=rounds: has no effect with parallel.expert_rows=0, "
                        "which is room for any routing; set parallel.expert_rows=1.25, or remove "
                        "one of them",
                        c->origin[KEY_parallel_overflow]);
    return OK;
}

/* Room for less than balanced routing needs, which every step would end in. */
static Err check_room(const Config *c)
{
    const bool drops = c->parallel_capacity > 0 && c->parallel_capacity < 1;
    const double least = drops ? c->parallel_capacity : 1, rows = c->parallel_expert_rows;
    if (c->mesh_ep <= 1 || c->parallel_overflow == OVERFLOW_ROUNDS || rows <= 0 || rows >= least)
        return OK;
    return err_fail(ERR_CONFIG,
                    "%s: parallel.expert_rows=%g: even balanced routing needs room for %g times "
                    "the even share of rows, so the first step would end the run; set "
                    "parallel.expert_rows=2 or more (0 is room for any routing), or "
                    "parallel.overflow=rounds",
                    c->origin[KEY_parallel_expert_rows], rows, least);
}

/* Settings of a mixture of experts; on a dense model they would change nothing. */
static Err set_experts(const Config *c, ModelConfig *m)
{
    const struct {
        int key;
        const char *name;
        bool set;
    } settings[] = {
        {KEY_optim_aux_loss, "optim.aux_loss", c->optim_aux_loss > 0},
        {KEY_optim_aux_level, "optim.aux_level", c->optim_aux_level != AUX_MICRO},
        {KEY_optim_z_loss, "optim.z_loss", c->optim_z_loss > 0},
        {KEY_optim_balance_bias, "optim.balance_bias", c->optim_balance_bias > 0},
        {KEY_parallel_capacity, "parallel.capacity", c->parallel_capacity > 0},
        {KEY_parallel_drop, "parallel.drop", c->parallel_drop != DROP_BY_POSITION},
        {KEY_parallel_expert_rows, "parallel.expert_rows",
         c->parallel_expert_rows < 2 || c->parallel_expert_rows > 2},
        {KEY_parallel_overflow, "parallel.overflow", c->parallel_overflow != OVERFLOW_ERROR},
        {KEY_mesh_ep, "mesh.ep", c->mesh_ep > 1},
        {KEY_mesh_etp, "mesh.etp", c->mesh_etp > 1},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings && !model_has_experts(m); i++)
        if (settings[i].set)
            return err_fail(ERR_CONFIG,
                            "%s: %s is for a mixture of experts, and %s has no %s; "
                            "remove it",
                            c->origin[settings[i].key], settings[i].name, m->name,
                            m->experts.n > 0 ? "layer with experts" : "experts");
    TRY(check_overflow(c));
    TRY(check_room(c));
    if (c->parallel_drop != DROP_BY_POSITION && c->parallel_capacity <= 0)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.drop has no effect without a capacity; set parallel.capacity "
                        "or remove it",
                        c->origin[KEY_parallel_drop]);
    if (c->optim_aux_level != AUX_MICRO && c->optim_aux_loss <= 0)
        return err_fail(ERR_CONFIG,
                        "%s: optim.aux_level has no effect without a loss; set optim.aux_loss or "
                        "remove it",
                        c->origin[KEY_optim_aux_level]);
    if (c->optim_aux_level != AUX_MICRO && c->numerics_fold > 1)
        return err_fail(ERR_CONFIG,
                        "%s: optim.aux_level=global with numerics.fold=%lld: one rank runs its "
                        "micro-batches one after another and cannot count those of %lld together; "
                        "set one of them to its default",
                        c->origin[KEY_optim_aux_level], (long long)c->numerics_fold,
                        (long long)c->numerics_fold);
    if (c->optim_balance_bias > 0 && !m->experts.bias)
        return err_fail(ERR_CONFIG,
                        "%s: optim.balance_bias=%g: the router of %s has no selection bias, only "
                        "that of a dots1 has; remove it, or set optim.aux_loss",
                        c->origin[KEY_optim_balance_bias], c->optim_balance_bias, m->name);
    m->experts.aux_loss = c->optim_aux_loss;
    m->experts.balance_global = c->optim_aux_level == AUX_GLOBAL;
    m->experts.z_loss = c->optim_z_loss;
    m->experts.capacity = c->parallel_capacity;
    m->experts.drop_by_gate = c->parallel_drop == DROP_BY_PROBABILITY;
    return OK;
}

/* Keys of text and of causal attention, which mean nothing to clips. */
static Err set_clips(Config *c, const ModelConfig *m)
{
    const struct {
        int key;
        const char *name, *cure;
        bool set;
    } refused[] = {
        {KEY_data_tokenizer, "data.tokenizer", "clips have no tokens to encode",
         strcmp(c->data_tokenizer, "auto") != 0},
        {KEY_data_format, "data.format", "files of clips are .npy or .safetensors by their names",
         c->data_format != DATA_AUTO},
        {KEY_data_pack, "data.pack", "clips are not packed documents", !c->data_pack},
        {KEY_data_seq_len, "data.seq_len",
         "a clip has frames x places tokens: set model.num_frames and the sizes of the latents",
         c->data_seq_len != m->max_positions &&
             c->data_seq_len != strtoll(key_at(KEY_data_seq_len)->fallback, NULL, 10)},
        {KEY_parallel_slices, "parallel.slices",
         "frames see later frames, so no slice can run "
         "before the next",
         c->parallel_slices > 1},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].set)
            return err_fail(ERR_CONFIG, "%s: %s is not for %s: %s; remove it",
                            c->origin[refused[i].key], refused[i].name, m->name, refused[i].cure);
    c->data_seq_len = m->max_positions;
    return OK;
}

Err config_model(Config *c, Arena *a, ModelConfig *out)
{
    ModelConfig m;
    const ModelSource from = {.name = c->model_name,
                              .set = c->model_fields,
                              .n_set = c->n_model_fields,
                              .ignore = {c->model_ignore.at, c->model_ignore.n}};
    TRY(model_config_open(&from, a, &m));
    TRY(set_experts(c, &m));
    m.fp8_marks = c->precision_compute == COMPUTE_FP8 && c->precision_scaling == SCALES_DELAYED;
    if (m.frames) TRY(set_clips(c, &m));
    if (c->data_seq_len > m.max_positions)
        return err_fail(ERR_CONFIG,
                        "%s: data.seq_len=%lld is more than the %lld positions of %s; set "
                        "data.seq_len=%lld or model.max_position_embeddings=%lld",
                        c->origin[KEY_data_seq_len], (long long)c->data_seq_len,
                        (long long)m.max_positions, m.name, (long long)m.max_positions,
                        (long long)c->data_seq_len);
    if (c->plan) TRY(plan_file_check(c, &m, a));
    *out = m;
    return OK;
}

int64_t config_micros(const Config *c)
{
    return batch_micros(c->batch_global, c->batch_micro, c->mesh_dp, c->numerics_fold);
}
