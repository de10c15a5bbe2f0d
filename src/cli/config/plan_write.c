/* plan_write.c -- writes the plan of a configuration: every key that it decides and whose value is
 * not the default, then the layers. */
#include <string.h>

#include "cli/config/plan_layers.h"
#include "cli/config/print.h"

static bool is_word(KeyId key)
{
    for (int w = 0; w < N_PLAN_WORDS; w++)
        if (plan_word_key(w) == key) return true;
    return false;
}

/* True if the key must be in the file although it may have its default: people look for it. */
static bool is_always_written(KeyId key)
{
    return key == KEY_mesh_dp || key == KEY_mesh_tp || key == KEY_mesh_cp || key == KEY_mesh_pp ||
           key == KEY_batch_micro;
}

/* Keys that settling derives from others: the plan leaves them out. */
static bool is_derived(const Config *c, KeyId key)
{
    if (key == KEY_mesh_dp_shard || key == KEY_mesh_dp_replicate) return c->mesh_dp_replicate == 1;
    return key == KEY_parallel_reduce && c->parallel_zero >= 2;
}

static Err key_text(const Config *c, KeyId key, Arena *temp, const char **out)
{
    Text t = text_in(temp);
    config_print_value(c, key, &t);
    return text_done(&t, out);
}

static Err is_default(const Config *c, KeyId key, Arena *temp, bool *out)
{
    Config other = {0};
    const char *mine, *fallback;
    const WrittenValue value = {.text = key_at(key)->fallback, .origin = "default"};
    TRY(key_set(key, &value, temp, &other));
    TRY(key_text(c, key, temp, &mine));
    TRY(key_text(&other, key, temp, &fallback));
    *out = strcmp(mine, fallback) == 0;
    return OK;
}

static Err section_text(const Config *c, const char *section, Arena *temp, Text *out)
{
    bool open = false;
    for (int k = 0; k < N_KEYS; k++) {
        const KeyId key = (KeyId)k;
        const char *value;
        bool same;
        if (strcmp(key_at(key)->section, section) != 0 || !plan_decides(key) || is_word(key))
            continue;
        TRY(is_default(c, key, temp, &same));
        if (is_derived(c, key) || (same && !is_always_written(key))) continue;
        TRY(key_text(c, key, temp, &value));
        text_add(out, "%s%s%s  %s: %s\n", open ? "" : section, open ? "" : ":", open ? "" : "\n",
                 key_at(key)->name, value);
        open = true;
    }
    return OK;
}

static Err target_text(const Config *c, const ModelConfig *model, Arena *temp, Text *out)
{
    uint64_t hash;
    TRY(plan_model_hash(model, temp, &hash));
    text_add(out, "plan:\n  version: 1\n  model: %016llx # %s\n", (unsigned long long)hash,
             model->name);
    text_add(out, "  precision: %s\n  seq_len: %lld\n  batch: %lld\n  ranks: %lld\n",
             option_text(c->precision_compute), (long long)c->data_seq_len,
             (long long)c->batch_global,
             (long long)(c->mesh_dp * c->mesh_tp * c->mesh_cp * c->mesh_pp));
    return OK;
}

Err plan_file_text(const Config *c, const ModelConfig *model, const PlanPrediction *predicted,
                   Arena *temp, Text *out)
{
    static const char *const section[] = {"mesh", "batch", "parallel"};
    uint64_t choices;
    text_add(out, "# A plan: how one run is distributed over its ranks. Edit it freely; `sheaf "
                  "train run.yaml\n# --plan FILE` checks it. The predictions at its end are "
                  "ignored once a choice has changed.\n");
    TRY(target_text(c, model, temp, out));
    for (int i = 0; i < 3; i++) TRY(section_text(c, section[i], temp, out));
    TRY(plan_layers_text(c, model->n_layers, temp, out));
    if (!predicted) return OK;
    TRY(plan_choices_hash(c, temp, &choices));
    text_add(out, "predicted:\n  choices: %016llx\n  cluster: \"%s\"\n",
             (unsigned long long)choices, predicted->cluster);
    text_add(out, "  step_ms: %.6g\n  bound_ms: %.6g\n  memory_bytes: %lld\n", predicted->step_ms,
             predicted->bound_ms, (long long)predicted->memory_bytes);
    return OK;
}
