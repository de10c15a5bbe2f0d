/* plan_file.c -- reads a plan file, and compares it with the run that it is used for. */
#include "cli/config/plan_layers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/config/print.h"

enum { PLAN_VERSION = 1 };

/* Capacity and drop are of the model: they decide which tokens an expert computes. */
bool plan_decides(KeyId key)
{
    const char *section = key_at(key)->section;
    if (key == KEY_parallel_capacity || key == KEY_parallel_drop) return false;
    return key == KEY_batch_micro || strcmp(section, "mesh") == 0 ||
           strcmp(section, "parallel") == 0;
}

/* ---- numbers and texts of the sections plan and predicted ---- */

typedef enum { FIELD_COUNT, FIELD_HASH, FIELD_NUMBER, FIELD_TEXT } FieldType;

/* One key of a section that is not of keys.def; `to` is int64_t, uint64_t, double, const char *. */
typedef struct {
    const char *name;
    FieldType type;
    void *to;
    bool set;
} PlanField;

static Err read_field(const KeyValue *v, PlanField *f)
{
    const char *text = v->value.text, *what = "a whole number above 0";
    char *end = NULL;
    errno = 0;
    if (f->type == FIELD_COUNT) *(int64_t *)f->to = strtoll(text, &end, 10);
    if (f->type == FIELD_NUMBER) *(double *)f->to = strtod(text, &end), what = "a number";
    if (f->type == FIELD_HASH)
        *(uint64_t *)f->to = strtoull(text, &end, 16), what = "a hash of 16 hexadecimal digits";
    bool good = f->type == FIELD_TEXT ? *text != '\0' : end != text && !*end && errno == 0;
    if (f->type == FIELD_COUNT) good = good && *(int64_t *)f->to > 0;
    if (f->type == FIELD_NUMBER) good = good && *(double *)f->to >= 0;
    if (f->type == FIELD_HASH) good = good && strlen(text) == 16;
    if (f->type == FIELD_TEXT) *(const char **)f->to = text, what = "a text";
    if (!good || v->value.sequence)
        return err_fail(ERR_CONFIG, "%s: %s.%s: \"%.40s\" is not %s; plan again, or correct it",
                        v->value.origin, v->section, v->name, text, what);
    f->set = true;
    return OK;
}

static Err take_field(const KeyValue *v, PlanField *table, int n)
{
    int i = 0;
    while (i < n && strcmp(table[i].name, v->name) != 0) i++;
    if (i == n)
        return err_fail(ERR_CONFIG, "%s: %s.%.80s: no plan has this key; remove it",
                        v->value.origin, v->section, v->name);
    if (table[i].set)
        return err_fail(ERR_CONFIG, "%s: %s.%s is given again; keep one", v->value.origin,
                        v->section, v->name);
    return read_field(v, &table[i]);
}

/* Reads the pairs of a section. *line is that of its first pair; 0: the section is not there. */
static Err read_fields(const KeyValues *all, const char *section, PlanField *table, int n,
                       int *line)
{
    *line = 0;
    for (int i = 0; i < all->n; i++) {
        if (strcmp(all->at[i].section, section) != 0) continue;
        if (!*line) *line = all->at[i].line;
        TRY(take_field(&all->at[i], table, n));
    }
    return OK;
}

static Err complete(const PlanFile *p, const char *section, const PlanField *table, int n)
{
    for (int i = 0; i < n; i++)
        if (!table[i].set)
            return err_fail(ERR_CONFIG,
                            "%s: the section %s has no %s; a plan needs it: plan again with `sheaf "
                            "plan`",
                            p->path, section, table[i].name);
    return OK;
}

static Err read_target(const KeyValues *all, PlanFile *p)
{
    int64_t version = PLAN_VERSION;
    PlanTarget *t = &p->target;
    PlanField table[] = {{"version", FIELD_COUNT, &version, false},
                         {"model", FIELD_HASH, &t->model, false},
                         {"precision", FIELD_TEXT, &t->precision, false},
                         {"seq_len", FIELD_COUNT, &t->seq_len, false},
                         {"batch", FIELD_COUNT, &t->batch, false},
                         {"ranks", FIELD_COUNT, &t->ranks, false}};
    TRY(read_fields(all, "plan", table, 6, &t->line));
    TRY(complete(p, "plan", table, 6));
    if (version == PLAN_VERSION) return OK;
    return err_fail(ERR_CONFIG,
                    "%s:%d: plan.version is %lld; this Sheaf reads version %d: plan "
                    "again with `sheaf plan`",
                    p->path, t->line, (long long)version, PLAN_VERSION);
}

static Err read_prediction(const KeyValues *all, PlanFile *p)
{
    int line;
    PlanPrediction *to = &p->predicted;
    PlanField table[] = {{"choices", FIELD_HASH, &p->choices, false},
                         {"cluster", FIELD_TEXT, &to->cluster, false},
                         {"step_ms", FIELD_NUMBER, &to->step_ms, false},
                         {"bound_ms", FIELD_NUMBER, &to->bound_ms, false},
                         {"memory_bytes", FIELD_COUNT, &to->memory_bytes, false}};
    TRY(read_fields(all, "predicted", table, 5, &line));
    if (line == 0) return OK;
    return complete(p, "predicted", table, 5);
}

/* ---- the file ---- */

/* Takes the keys of the run file: those that a plan decides, without the words of layers. */
static Err take_key(const KeyValue *v, PlanFile *p)
{
    const int id = key_find(v->section, v->name);
    if (id < 0) return key_unknown(v->value.origin, v->section, v->name);
    for (int w = 0; w < N_PLAN_WORDS; w++)
        if (plan_word_key(w) == (KeyId)id)
            return err_fail(ERR_CONFIG,
                            "%s: %s: a plan gives it to layers; write it below layers:, as in 0-7: "
                            "[%s %.40s]",
                            v->value.origin, key_at((KeyId)id)->path, v->name, v->value.text);
    if (!plan_decides((KeyId)id))
        return err_fail(ERR_CONFIG, "%s: %s: no plan decides it; set it in the run file",
                        v->value.origin, key_at((KeyId)id)->path);
    p->at[p->n++] = *v;
    return OK;
}

Err plan_file_read(const char *path, const char *text, Arena *a, PlanFile *out)
{
    static const char *const sections[] = {"plan",     "mesh",   "batch",
                                           "parallel", "layers", "predicted"};
    PlanFile p = {.path = path};
    YamlSource from = {.path = path, .text = text, .sections = sections, .n_sections = 6};
    KeyValues all;
    if (text)
        from.length = strlen(text);
    else
        TRY(text_read_file(path, MAX_YAML_BYTES, a, &from.text, &from.length));
    TRY(pairs_parse(&from, a, &all));
    TRY(ARENA_NEW(a, all.n + N_PLAN_WORDS + 1, &p.at));
    TRY(ARENA_NEW(a, all.n + 1, &p.layers));
    TRY(read_target(&all, &p));
    for (int i = 0; i < all.n; i++) {
        const char *section = all.at[i].section;
        if (strcmp(section, "layers") == 0)
            TRY(plan_layers_read(&all.at[i], a, &p));
        else if (section_find(section) >= 0)
            TRY(take_key(&all.at[i], &p));
    }
    if (p.n_layers == 0)
        return err_fail(ERR_CONFIG,
                        "%s: the section layers is missing or empty; write one, as in 0-31: [zero "
                        "1, recompute none]",
                        path);
    TRY(plan_layers_keys(&p, a));
    TRY(read_prediction(&all, &p));
    *out = p;
    return OK;
}

/* ---- hashes and checks ---- */

/* FNV-1a; the end of a text counts. */
static uint64_t hash_text(uint64_t h, const char *text)
{
    for (;; text++) {
        h = (h ^ (unsigned char)*text) * 1099511628211u;
        if (!*text) return h;
    }
}

Err plan_choices_hash(const Config *c, Arena *temp, uint64_t *out)
{
    const size_t mark = arena_mark(temp);
    uint64_t h = 14695981039346656037u;
    for (int k = 0; k < N_KEYS; k++) {
        const char *value;
        if (!plan_decides((KeyId)k)) continue;
        Text t = text_in(temp);
        config_print_value(c, (KeyId)k, &t);
        TRY(text_done(&t, &value));
        h = hash_text(hash_text(h, key_at((KeyId)k)->path), value);
    }
    arena_rewind(temp, mark);
    *out = h;
    return OK;
}

Err plan_model_hash(const ModelConfig *model, Arena *temp, uint64_t *out)
{
    const char *json;
    Text t = text_in(temp);
    model_config_json(model, &t);
    TRY(text_done(&t, &json));
    *out = hash_text(14695981039346656037u, json);
    return OK;
}

static Err other_run(const PlanFile *p, const char *key, const char *made, const char *now)
{
    return err_fail(
        ERR_CONFIG,
        "%s:%d: the plan was made for %s=%s, and the run has %s; plan again with `sheaf "
        "plan`, or change the run",
        p->path, p->target.line, key, made, now);
}

static Err check_count(const PlanFile *p, const char *key, int64_t made, int64_t now)
{
    char a[24], b[24];
    if (made == now) return OK;
    snprintf(a, sizeof a, "%lld", (long long)made);
    snprintf(b, sizeof b, "%lld", (long long)now);
    return other_run(p, key, a, b);
}

Err plan_file_check(const Config *c, const ModelConfig *model, Arena *temp)
{
    PlanFile *p = c->plan;
    const PlanTarget *t = &p->target;
    const PlanLayers *last = &p->layers[p->n_layers - 1];
    uint64_t hash, choices;
    TRY(plan_choices_hash(c, temp, &choices));
    p->is_current = p->choices != 0 && choices == p->choices;
    if (!p->is_current) p->predicted = (PlanPrediction){0};
    TRY(plan_model_hash(model, temp, &hash));
    if (hash != t->model)
        return err_fail(ERR_CONFIG,
                        "%s:%d: the plan was made for another model (hash %016llx; that of %s is "
                        "%016llx); plan again with `sheaf plan`",
                        p->path, t->line, (unsigned long long)t->model, model->name,
                        (unsigned long long)hash);
    TRY(check_count(p, "data.seq_len", t->seq_len, c->data_seq_len));
    TRY(check_count(p, "batch.global", t->batch, c->batch_global));
    TRY(check_count(p, "run.ranks", t->ranks, c->mesh_dp * c->mesh_tp * c->mesh_cp * c->mesh_pp));
    if (strcmp(t->precision, option_text(c->precision_compute)) != 0)
        return other_run(p, "precision.compute", t->precision, option_text(c->precision_compute));
    if (last->last + 1 == model->n_layers) return OK;
    return err_fail(ERR_CONFIG, "%s: layers end at %lld, and the model's layers are 0 to %lld; %s",
                    last->origin, (long long)last->last, (long long)model->n_layers - 1,
                    last->last + 1 < model->n_layers ? "add the missing ones"
                                                     : "remove the others");
}
