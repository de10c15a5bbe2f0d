/* config.c -- from a model name to its config: finds the source and applies the overrides.
 *
 *     preset name         its key=value words become entries of level 0
 *     path                the keys of the config.json become entries of level 0
 *     model.KEY=VALUE     entries of the caller's level
 *
 * config_read.c converts the entries to fields; config_check.c checks that the sizes fit
 * together. */
#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include "model/config_rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

Err entries_add(Entries *e, const Entry *entry)
{
    if (e->n == MAX_ENTRIES)
        return err_fail(ERR_CONFIG,
                        "%s: more than %d keys; a config.json has about 30: is this file one?",
                        entry->origin, MAX_ENTRIES);
    e->at[e->n++] = *entry;
    return OK;
}

/* Accepts numbers as JSON writes them: strtod alone would also accept nan, inf and hexadecimal. */
static void read_number(const char *text, Entry *entry)
{
    char *end;
    if (!*text || strspn(text, "+-.0123456789eE") != strlen(text)) return;
    errno = 0;
    const long long whole = strtoll(text, &end, 10);
    if (*end == '\0' && errno == 0) {
        entry->kind = V_INT, entry->whole = whole, entry->real = (double)whole;
        return;
    }
    const double real = strtod(text, &end);
    if (*end == '\0' && isfinite(real)) entry->kind = V_REAL, entry->real = real;
}

/* Adds an entry whose value is parsed from text: null, true, false, a number, else a string. */
static Err add_text(Entries *e, const ModelField *field)
{
    Entry entry = {.key = field->key, .origin = field->origin, .level = field->level};
    TRY(arena_string(e->arena, field->value, &entry.text));
    entry.kind = V_TEXT;
    entry.truth = strcmp(entry.text, "true") == 0;
    if (strcmp(entry.text, "null") == 0)
        entry.kind = V_NULL;
    else if (entry.truth || strcmp(entry.text, "false") == 0)
        entry.kind = V_BOOL;
    else
        read_number(entry.text, &entry);
    return entries_add(e, &entry);
}

/* Splits "model_type=gpt2 n_layer=12 ..." into entries. */
static Err add_preset(Entries *e, const char *name, const char *words)
{
    const char *copy;
    char *rest;
    ModelField field = {.level = 0};
    Text origin = text_in(e->arena);
    text_add(&origin, "preset %s", name);
    TRY(text_done(&origin, &field.origin));
    TRY(arena_string(e->arena, words, &copy));
    for (char *word = strtok_r((char *)copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        MUST(equals, "preset %s: %s", name, word);
        *equals = '\0';
        field.key = word, field.value = equals + 1;
        TRY(add_text(e, &field));
    }
    return OK;
}

static Err unknown_name(const char *name, Arena *a)
{
    const char *known[64], *list;
    int n = 0;
    Text t = text_in(a);
    for (; n < 64 && model_preset_name(n); n++) {
        known[n] = model_preset_name(n);
        text_add(&t, "%s%s", n ? ", " : "", known[n]);
    }
    TRY(text_done(&t, &list));
    const char *near = text_nearest(name, known, n);
    return err_fail(ERR_CONFIG,
                    "model.name=%s: neither a preset nor a config.json nor a folder with one%s%s%s "
                    "Presets: %s",
                    name, near ? "; did you mean " : ".", near ? near : "", near ? "?" : "", list);
}

/* Returns the config.json that a path refers to: the file itself, or the one in the folder. */
static Err json_path(const char *name, Arena *a, const char **out)
{
    struct stat st;
    if (stat(name, &st) != 0) return unknown_name(name, a);
    if (!S_ISDIR(st.st_mode)) return arena_string(a, name, out);
    Text t = text_in(a);
    const size_t length = strlen(name);
    text_add(&t, "%s%sconfig.json", name, name[length - 1] == '/' ? "" : "/");
    TRY(text_done(&t, out));
    if (stat(*out, &st) != 0)
        return err_fail(ERR_CONFIG, "model.name=%s: the folder holds no config.json", name);
    return OK;
}

static Err add_source(Entries *e, const char *name, const char **source)
{
    if (!name || !*name)
        return err_fail(ERR_CONFIG,
                        "model.name is not set; set it to a preset (model.name=gpt2-tiny; "
                        "`sheaf help model.name` lists them) or to a config.json");
    for (int i = 0; model_preset_name(i); i++) {
        if (strcmp(name, model_preset_name(i)) != 0) continue;
        *source = model_preset_name(i);
        return add_preset(e, name, model_preset_words(i));
    }
    TRY(json_path(name, e->arena, source));
    return entries_add_json(e, *source);
}

/* Adds the overrides to the source's entries, then reads and checks the config. */
static Err finish(Entries *e, const char *source, const ModelField *set, int n, ModelConfig *out)
{
    Draft draft;
    for (int i = 0; i < n; i++) TRY(add_text(e, &set[i]));
    TRY(draft_read(e, source, &draft));
    TRY(model_config_check(&draft.c));
    *out = draft.c;
    return OK;
}

Err model_config_open(const ModelSource *from, Arena *a, ModelConfig *out)
{
    Entries e = {.arena = a, .trains = !from->inference, .ignore = from->ignore};
    const char *source;
    TRY(ARENA_NEW(a, MAX_ENTRIES, &e.at));
    TRY(add_source(&e, from->name, &source));
    return finish(&e, source, from->set, from->n_set, out);
}

Err model_config_load(const char *name, const ModelField *set, int n, Arena *a, ModelConfig *out)
{
    const ModelSource from = {.name = name, .set = set, .n_set = n};
    return model_config_open(&from, a, out);
}

Err model_config_inference(const char *name, Arena *a, ModelConfig *out)
{
    const ModelSource from = {.name = name, .inference = true};
    return model_config_open(&from, a, out);
}

Err model_config_parse(const char *name, const char *text, size_t bytes, Arena *a, ModelConfig *out)
{
    Entries e = {.arena = a};
    TRY(ARENA_NEW(a, MAX_ENTRIES, &e.at));
    TRY(entries_add_json_text(&e, name, text, bytes));
    return finish(&e, name, NULL, 0, out);
}
