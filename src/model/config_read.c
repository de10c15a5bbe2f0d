/* config_read.c -- converts entries to fields: chooses the entry that wins, checks its kind and
 * limits.
 *
 *     family    from model_type
 *     choose    one entry per row: the highest level; two of the same level must agree
 *     store     each chosen entry into its member of Draft
 *     resolve   fields that depend on others: head size, rope, window (config_check.c) */
#include "model/config_rows.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const family_names[N_FAMILIES] = {"gpt2",  "llama",   "mistral",   "qwen2",
                                                     "qwen3", "mixtral", "qwen2_moe", "qwen3_moe",
                                                     "olmoe", "stdit",   "dots1"};

/* Defaults for missing keys, as in Hugging Face's classes. Zero sizes are resolved later. */
#define ROTARY_DEFAULTS .norm_eps = 1e-6, .init_std = 0.02, .rope = {.theta = 10000, .factor = 1}
static const ModelConfig defaults[N_FAMILIES] = {
    [FAMILY_GPT2] = {.norm_eps = 1e-5,
                     .init_std = 0.02,
                     .tied = true,
                     .qkv_bias = true,
                     .o_bias = true,
                     .mlp_bias = true},
    [FAMILY_LLAMA] = {ROTARY_DEFAULTS},
    [FAMILY_MISTRAL] = {ROTARY_DEFAULTS},
    [FAMILY_QWEN2] = {ROTARY_DEFAULTS, .qkv_bias = true},
    [FAMILY_QWEN3] = {ROTARY_DEFAULTS, .qk_norm = true},
    [FAMILY_MIXTRAL] = {.norm_eps = 1e-5,
                        .init_std = 0.02,
                        .rope = {.theta = 1e6, .factor = 1},
                        .experts = {.renormalize = true, .scaling = 1}},
    [FAMILY_QWEN2_MOE] = {ROTARY_DEFAULTS, .qkv_bias = true,
                          .experts = {.scaling = 1, .shared_gate = true}},
    [FAMILY_QWEN3_MOE] = {ROTARY_DEFAULTS, .qk_norm = true, .experts = {.scaling = 1}},
    [FAMILY_OLMOE] = {.norm_eps = 1e-5,
                      .init_std = 0.02,
                      .rope = {.theta = 10000, .factor = 1},
                      .q_norm = true,
                      .experts = {.scaling = 1}},
    [FAMILY_STDIT] = {.norm_eps = 1e-6,
                      .init_std = 0.02,
                      .qkv_bias = true,
                      .o_bias = true,
                      .mlp_bias = true,
                      .clip = {.dims = 2}},
    [FAMILY_DOTS1] = {ROTARY_DEFAULTS, .qk_norm = true,
                      .experts = {.score = ROUTE_SIGMOID,
                                  .scaling = 1,
                                  .groups = 1,
                                  .chosen_groups = 1,
                                  .group_best = 2,
                                  .bias = true}},
};

/* The chosen entry of each row; NULL: the key is not set. */
typedef struct {
    const char *name;
    Family family;
    const Entry *of[MAX_CONFIG_ROWS];
} ChosenEntries;

const char *family_name(Family family) { return family_names[family]; }

/* Fails with "run.yaml:3: model.n_layer=x: " and the reason. */
static Err refuse(const Entry *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static Err refuse(const Entry *e, const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return err_fail(ERR_CONFIG, "%s: %s%.80s=%.80s: %s", e->origin, e->level ? "model." : "",
                    e->key, e->text, why);
}

static Err find_family(const Entries *e, const char *name, Family *out)
{
    const Entry *type = NULL;
    for (int i = 0; i < e->n; i++)
        if (strcmp(e->at[i].key, "model_type") == 0) type = &e->at[i];
    if (!type)
        return err_fail(ERR_CONFIG,
                        "%s: no model_type; add one of gpt2, llama, mistral, qwen2, qwen3, "
                        "mixtral, qwen2_moe, qwen3_moe, olmoe, dots1, stdit",
                        name);
    for (int f = 0; f < N_FAMILIES; f++) {
        if (strcmp(type->text, family_names[f]) != 0) continue;
        *out = (Family)f;
        return OK;
    }
    return refuse(type,
                  "a family that this version does not build; it builds gpt2, llama, mistral, "
                  "qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, olmoe, dots1, stdit");
}

static Err refuse_unknown(const Entry *e, Family family)
{
    const char *sibling = row_sibling(e->key, family);
    if (sibling)
        return refuse(e, "a %s has the key %s for it; use that", family_names[family], sibling);
    char ignore[128] = ""; /* a key that an argument sets can be removed there */
    if (e->level == 0)
        snprintf(ignore, sizeof ignore, "; if it changes nothing, set model.ignore=%.80s", e->key);
    for (int f = 0; f < N_FAMILIES; f++)
        if (row_find(e->key, (Family)f) >= 0)
            return refuse(e,
                          "a key of %s, and model_type is %s, which has no such key; remove it%s",
                          family_names[f], family_names[family], ignore);
    const char *near = row_nearest(e->key, 1u << family);
    if (near) return refuse(e, "unknown key; did you mean %s?%s", near, ignore + (*ignore == ';'));
    return refuse(e, "unknown key, and it might change the model%s",
                  e->level == 0 ? ignore : "; remove it if it does not");
}

static bool is_listed(const IgnoredKeys *list, const char *key)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->key[i], key) == 0) return true;
    return false;
}

/* Decides whether an entry of a config.json is skipped. ERR_CONFIG for a listed key that is read:
 * without it the model would be another. */
static Err check_ignored(const Entries *all, const Entry *e, Family family, bool *out)
{
    const int r = row_find(e->key, family);
    *out = e->level == 0 && is_listed(&all->ignore, e->key);
    if (!*out || r == ROW_UNKNOWN || r == ROW_BOOKKEEPING) return OK;
    if (r >= 0 && row_at(r)->kind == ROW_ONLY) return OK;
    return refuse(e, "model.ignore=%.80s: a %s has this key, so it is not ignored; set model.%.80s",
                  e->key, family_names[family], e->key);
}

/* rope_scaling=null removes the rope settings of lower levels. */
static Err clear_rope(const Entry *e, ChosenEntries *chosen)
{
    if (e->kind != V_NULL)
        return refuse(e, "must be an object or null; single values are set as %s.factor", e->key);
    for (int r = 0; r < row_count(); r++)
        if (strncmp(row_at(r)->key, "rope_scaling.", 13) == 0 && chosen->of[r] &&
            chosen->of[r]->level < e->level)
            chosen->of[r] = NULL;
    return OK;
}

static bool same_value(const Entry *a, const Entry *b)
{
    const bool numbers =
        (a->kind == V_INT || a->kind == V_REAL) && (b->kind == V_INT || b->kind == V_REAL);
    if (numbers) return a->real == b->real;
    return a->kind == b->kind && strcmp(a->text, b->text) == 0;
}

static Err choose(const Entry *e, ChosenEntries *chosen)
{
    const int r = row_find(e->key, chosen->family);
    if (r == ROW_OBJECT) return clear_rope(e, chosen);
    if (r == ROW_UNKNOWN) return refuse_unknown(e, chosen->family);
    if (r == ROW_BOOKKEEPING) {
        if (e->level == 0) return OK;
        return refuse(e, "changes nothing in a model that trains; remove it");
    }
    const Entry *other = chosen->of[r];
    if (other && other->level == e->level && !same_value(other, e))
        return refuse(e, "and %s=%s: two values for one thing; keep one", other->key, other->text);
    if (!other || other->level <= e->level) chosen->of[r] = e;
    return OK;
}

static Err require(const ChosenEntries *chosen)
{
    for (int r = 0; r < row_count(); r++) {
        const Row *row = row_at(r);
        if ((row->required >> chosen->family & 1) && !chosen->of[r])
            return err_fail(
                ERR_CONFIG, "%s: no %s (%s); a %s needs it; add it, or set model.%s=...",
                chosen->name, row->key, row->meaning, family_names[chosen->family], row->key);
    }
    return OK;
}

/* True if the value is a word of `only`. Numbers are compared as numbers: 0.0 equals 0. */
static bool is_one_of(const Entry *e, const char *only)
{
    while (*only) {
        const size_t length = strcspn(only, " ");
        if (strlen(e->text) == length && strncmp(e->text, only, length) == 0) return true;
        if ((e->kind == V_INT || e->kind == V_REAL) && strchr("0123456789", *only) &&
            e->real == strtod(only, NULL))
            return true;
        only += length + (only[length] == ' ');
    }
    return false;
}

static Err refuse_feature(const Row *row, const Entry *e, bool trains)
{
    const size_t first = strcspn(row->only, " ");
    if (!trains)
        return refuse(e,
                      "%s: this version supports %s only; to run without it, set model.ignore=%s",
                      row->meaning, row->only, e->key);
    return refuse(e, "%s: this version supports %s only; to train without it, set model.%s=%.*s",
                  row->meaning, row->only, row->key, (int)first, row->only);
}

static Err check_limits(const Row *row, const Entry *e)
{
    if (e->real < row->low)
        return refuse(e, "too small; the least is %.15g (%s)", row->low, row->meaning);
    if (e->real > row->high)
        return refuse(e, "too large; the most is %.15g (%s)", row->high, row->meaning);
    return OK;
}

/* A list of a config.json; elsewhere its items, with commas. */
static Err check_list(const Row *row, const Entry *e)
{
    if (e->kind == V_LIST) return OK;
    if (e->level == 0 || e->kind == V_BOOL || e->kind == V_NULL || strchr(e->text, '['))
        return refuse(e, "must be a list (%s); %s", row->meaning,
                      e->level ? "write its items with commas, without brackets, as 0,1"
                               : "write it in brackets");
    return OK;
}

static Err store(const Row *row, const Entry *e, bool trains, Draft *d)
{
    void *member = (char *)d + row->member;
    if (e->kind == V_NULL && row->null_ok) return OK;
    switch (row->kind) {
    case ROW_ONLY:
        return is_one_of(e, row->only) ? OK : refuse_feature(row, e, trains);
    case ROW_INT:
        if (e->kind != V_INT) return refuse(e, "must be a whole number (%s)", row->meaning);
        TRY(check_limits(row, e));
        *(int64_t *)member = e->whole;
        return OK;
    case ROW_FLOAT:
        if (e->kind != V_INT && e->kind != V_REAL)
            return refuse(e, "must be a number (%s)", row->meaning);
        TRY(check_limits(row, e));
        *(double *)member = e->real;
        return OK;
    case ROW_BOOL:
        if (e->kind != V_BOOL) return refuse(e, "must be true or false (%s)", row->meaning);
        *(bool *)member = e->truth;
        return OK;
    case ROW_TEXT:
        if (e->kind != V_TEXT) return refuse(e, "must be a text (%s)", row->meaning);
        *(const char **)member = e->text;
        return OK;
    case ROW_LIST:
        TRY(check_list(row, e));
        *(const char **)member = e->text;
        return OK;
    }
    return OK;
}

static bool is_dropout(const Row *row) { return row->kind == ROW_ONLY && strstr(row->key, "drop"); }

Err draft_read(const Entries *e, const char *name, Draft *out)
{
    ChosenEntries chosen = {.name = name};
    TRY(find_family(e, name, &chosen.family));
    Draft d = {.c = defaults[chosen.family], .window_layers = -1};
    d.c.name = name;
    d.c.family = chosen.family;
    for (int i = 0; i < e->n; i++) {
        bool ignored;
        TRY(check_ignored(e, &e->at[i], chosen.family, &ignored));
        if (!ignored) TRY(choose(&e->at[i], &chosen));
    }
    TRY(require(&chosen));
    for (int r = 0; r < row_count(); r++)
        if (chosen.of[r] && (e->trains || !is_dropout(row_at(r))))
            TRY(store(row_at(r), chosen.of[r], e->trains, &d));
    TRY(draft_resolve(&d));
    *out = d;
    return OK;
}
