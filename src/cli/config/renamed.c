/* renamed.c -- renamed.def as tables: old names found, replaced or refused. */
#define _POSIX_C_SOURCE 200809L
#include "cli/config/renamed.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RENAMED_WORD(old, now)
#define RENAMED_KEY(old_section, old_name, section, name)                                          \
    {#old_section, #old_name, #old_section "." #old_name, #section, #name, #section "." #name},
static const struct {
    const char *old_section, *old_name, *old_path;
    const char *section, *name, *path;
} renamed_keys[] = {
#include "cli/config/renamed.def"
};
#undef RENAMED_WORD
#undef RENAMED_KEY

#define RENAMED_KEY(old_section, old_name, section, name)
#define RENAMED_WORD(old, now) {#old, #now},
static const struct {
    const char *old, *now;
} renamed_words[] = {
#include "cli/config/renamed.def"
};
#undef RENAMED_WORD
#undef RENAMED_KEY

enum {
    N_RENAMED_KEYS = sizeof renamed_keys / sizeof *renamed_keys,
    N_RENAMED_WORDS = sizeof renamed_words / sizeof *renamed_words
};

/* Training and reshape make checkpoints/ before they write config.yaml, so every saved
 * configuration has it. A copy of the file elsewhere is a request of the user. */
bool config_is_saved(const char *path)
{
    static const char name[] = "config.yaml";
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char folder[1200];
    struct stat s;
    if (strcmp(base, name) != 0) return false;
    snprintf(folder, sizeof folder, "%.*scheckpoints", (int)(base - path), path);
    return stat(folder, &s) == 0 && S_ISDIR(s.st_mode);
}

/* Returns the row of an old key, or -1. */
static int find_key(const char *section, const char *name)
{
    for (int i = 0; i < N_RENAMED_KEYS; i++)
        if (strcmp(renamed_keys[i].old_section, section) == 0 &&
            strcmp(renamed_keys[i].old_name, name) == 0)
            return i;
    return -1;
}

/* True for keys whose value is a list of patterns of value names. */
static bool has_patterns(const char *section, const char *name)
{
    const int id = key_find(section, name);
    return id == KEY_parallel_recompute || id == KEY_parallel_offload;
}

/* Returns the new word for the `n` characters at `word`, or NULL. */
static const char *new_word(const char *word, size_t n)
{
    for (int i = 0; i < N_RENAMED_WORDS; i++)
        if (strlen(renamed_words[i].old) == n && strncmp(renamed_words[i].old, word, n) == 0)
            return renamed_words[i].now;
    return NULL;
}

/* The patterns with every old word replaced; *out is NULL if there is no old word. Dots, commas and
 * wildcards separate words, so `*.turned` becomes `*.rope`. */
static Err rename_patterns(const char *text, Arena *a, const char **out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    Text t = text_in(a);
    const char *done;
    bool any = false;
    *out = NULL;
    while (*text) {
        const size_t n = strspn(text, letters);
        const char *word = new_word(text, n);
        const size_t length = n ? n : 1;
        any = any || word;
        text_add(&t, "%.*s", word ? (int)strlen(word) : (int)length, word ? word : text);
        text += length;
    }
    TRY(text_done(&t, &done));
    if (any) *out = done;
    return OK;
}

Err pairs_rename(KeyValues *pairs, Arena *a)
{
    for (int i = 0; i < pairs->n; i++) {
        KeyValue *pair = &pairs->at[i];
        const char *patterns = NULL;
        const int key = find_key(pair->section, pair->name);
        if (key >= 0) {
            pair->section = renamed_keys[key].section;
            pair->name = renamed_keys[key].name;
        }
        if (has_patterns(pair->section, pair->name))
            TRY(rename_patterns(pair->value.text, a, &patterns));
        if (patterns) pair->value.text = patterns;
    }
    return OK;
}

Err renamed_refuse(const char *section, const char *name, const WrittenValue *value, Arena *a)
{
    const int key = find_key(section, name);
    const char *patterns = NULL;
    if (key >= 0)
        return err_fail(ERR_CONFIG, "%s: %s: now %s; write %s=%.80s", value->origin,
                        renamed_keys[key].old_path, renamed_keys[key].path, renamed_keys[key].path,
                        value->text);
    if (has_patterns(section, name)) TRY(rename_patterns(value->text, a, &patterns));
    if (!patterns) return OK;
    return err_fail(ERR_CONFIG, "%s: %s.%s=%.200s: now %s.%s=%.200s", value->origin, section, name,
                    value->text, section, name, patterns);
}

const char *renamed_path(const char *word)
{
    for (int i = 0; i < N_RENAMED_KEYS; i++)
        if (strcmp(renamed_keys[i].old_path, word) == 0 ||
            strcmp(renamed_keys[i].old_name, word) == 0)
            return renamed_keys[i].path;
    return NULL;
}
