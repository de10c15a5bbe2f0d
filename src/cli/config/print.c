/* print.c -- the keys of keys.def as YAML, section by section. */
#include "cli/config/print.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/config/layer_rules.h"

/* Prints a text in double quotes, the only style of YAML that can express any text. */
static void print_text(Text *out, const char *text)
{
    text_add(out, "\"");
    for (const char *s = text; *s; s++) {
        if (*s == '"' || *s == '\\')
            text_add(out, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            text_add(out, "\\x%02x", (unsigned)*s);
        else
            text_add(out, "%c", *s);
    }
    text_add(out, "\"");
}

/* Prints a field of config.json as the user wrote it: numbers and plain words without quotes. */
static void print_field(Text *out, const char *text)
{
    const size_t plain =
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-");
    if (*text && text[plain] == '\0')
        text_add(out, "%s", text);
    else
        print_text(out, text);
}

static void print_list(Text *out, const TextList *list)
{
    text_add(out, "[");
    for (int i = 0; i < list->n; i++) {
        text_add(out, i ? ", " : "");
        print_text(out, list->at[i]);
    }
    text_add(out, "]");
}

/* Prints the shortest decimal form that strtod converts back to the same number. */
static void print_float(Text *out, double x)
{
    char form[40] = "";
    for (int digits = 1; digits <= 17 && (!form[0] || strtod(form, NULL) != x); digits++)
        snprintf(form, sizeof form, "%.*g", digits, x);
    text_add(out, "%s", form);
}

static void print_value(Text *out, const Key *key, const Config *c)
{
    const void *at = (const char *)c + key->member;
    switch (key->type) {
    case KEY_INT:
        if (*(const int64_t *)at == 0 && strcmp(key->fallback, "auto") == 0)
            text_add(out, "auto"); /* config_load settles only some keys */
        else
            text_add(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case KEY_FLOAT:
        print_float(out, *(const double *)at);
        break;
    case KEY_BOOL:
        text_add(out, "%s", *(const bool *)at ? "true" : "false");
        break;
    case KEY_TEXT:
        print_text(out, *(const char *const *)at);
        break;
    case KEY_CHOICE:
        text_add(out, "%s", option_text(*(const Option *)at));
        break;
    case KEY_LIST:
        print_list(out, at);
        break;
    }
}

/* Prints a value with its rules for layers: a list that ends with the value of all other units. */
static void print_key(Text *out, KeyId id, const Config *c)
{
    const Key *key = key_at(id);
    const TextList *list = (const void *)((const char *)c + key->member);
    if (!layer_rules_first(c, id)) {
        print_value(out, key, c);
        return;
    }
    text_add(out, "[");
    layer_rules_print(c, id, out);
    for (int i = 0; key->type == KEY_LIST && i < list->n; i++) {
        text_add(out, i ? ", " : "");
        print_text(out, list->at[i]);
    }
    if (key->type != KEY_LIST) print_value(out, key, c);
    text_add(out, "]");
}

void config_print_value(const Config *c, KeyId key, Text *out) { print_key(out, key, c); }

/* True unless another entry overrides field i: an argument overrides the file. */
static bool wins(const Config *c, int i)
{
    for (int k = 0; k < c->n_model_fields; k++) {
        const ModelField *a = &c->model_fields[i], *b = &c->model_fields[k];
        if (strcmp(a->key, b->key) != 0 || k == i) continue;
        if (b->level > a->level || (b->level == a->level && k < i)) return false;
    }
    return true;
}

/* Prints every key of keys.def, so that a later change of a default does not change the run. */
void config_print(const Config *config, Text *out)
{
    Config saved = *config;
    const Config *c = &saved;
    saved.run_fresh = false;
    for (int s = 0; s < section_count(); s++) {
        const char *section = section_at(s)->name;
        text_add(out, "%s:\n", section);
        for (int k = 0; k < N_KEYS; k++) {
            const Key *key = key_at((KeyId)k);
            if (strcmp(key->section, section) != 0) continue;
            text_add(out, "  %s: ", key->name);
            print_key(out, (KeyId)k, c);
            text_add(out, "\n");
        }
        for (int i = 0; strcmp(section, "model") == 0 && i < c->n_model_fields; i++) {
            if (!wins(c, i)) continue;
            text_add(out, "  %s: ", c->model_fields[i].key);
            print_field(out, c->model_fields[i].value);
            text_add(out, "\n");
        }
    }
}

Err config_write(const Config *c, const char *dir)
{
    char path[1100], fresh[1110];
    const char *yaml;
    Arena temp;
    TRY(arena_open(&temp, "config", (size_t)1 << 24));
    Text t = text_in(&temp);
    config_print(c, &t);
    Err err = text_done(&t, &yaml);
    snprintf(path, sizeof path, "%s/config.yaml", dir);
    snprintf(fresh, sizeof fresh, "%s.tmp",
             path); /* the old file stays until the new one is complete */
    FILE *f = err == OK ? fopen(fresh, "w") : NULL;
    if (err == OK && (!f || fputs(yaml, f) < 0 || fflush(f) != 0))
        err = err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (f) fclose(f);
    if (err == OK && rename(fresh, path) != 0)
        err = err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    arena_close(&temp);
    return err;
}

/* A plain search instead of a YAML parser: the text has the fixed form of config_print, one line
 * per key, indented by two spaces. */
const char *config_yaml_value(const char *yaml, const char *section, const char *key)
{
    char head[40], line[40];
    snprintf(head, sizeof head, "%s:\n", section);
    snprintf(line, sizeof line, "  %s: ", key);
    const char *at = strncmp(yaml, head, strlen(head)) == 0 ? yaml : NULL;
    snprintf(head, sizeof head, "\n%s:\n", section);
    if (!at) at = strstr(yaml, head);
    for (at = at ? strchr(at + 1, '\n') : NULL; at && strncmp(at + 1, "  ", 2) == 0;
         at = strchr(at + 1, '\n'))
        if (strncmp(at + 1, line, strlen(line)) == 0) return at + 1 + strlen(line);
    return NULL;
}

Err config_yaml_text(const char *yaml, const char *section, const char *key, Arena *a,
                     const char **out)
{
    char *copy;
    const char *at = config_yaml_value(yaml, section, key);
    *out = NULL;
    if (!at) return OK;
    const size_t n = strcspn(at, "\n");
    const size_t quote = n >= 2 && (at[0] == '"' || at[0] == '\'') && at[n - 1] == at[0];
    TRY(ARENA_NEW(a, n + 1, &copy));
    memcpy(copy, at + quote, n - 2 * quote);
    *out = copy;
    return OK;
}
