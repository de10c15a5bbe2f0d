/* config_json.c -- a config.json as a list of entries. Only this file of the folder uses jansson.
 *
 *     {"n_layer": 12, "rope_scaling": {"factor": 8.0}}   -->   n_layer = 12
 *                                                              rope_scaling.factor = 8
 *
 * Only the rope objects and quantization_config are expanded. Any other object, and an empty one,
 * becomes one entry, checked by its row. */
#include "model/config_rows.h"

#include <jansson.h>
#include <string.h>

enum { MAX_JSON_BYTES = 1 << 20 };

/* Joins a list of strings or whole numbers with commas. Other elements become "?", which no row
 * accepts. */
static Err list_text(const json_t *list, Arena *a, const char **out)
{
    Text t = text_in(a);
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item) if (json_is_integer(item))
        text_add(&t, "%s%lld", i ? "," : "", (long long)json_integer_value(item));
    else text_add(&t, "%s%s", i ? "," : "", json_is_string(item) ? json_string_value(item) : "?");
    return text_done(&t, out);
}

static Err number_text(const json_t *value, Arena *a, const char **out)
{
    Text t = text_in(a);
    if (json_is_integer(value))
        text_add(&t, "%lld", (long long)json_integer_value(value));
    else
        text_add(&t, "%.15g", json_real_value(value));
    return text_done(&t, out);
}

static Err entry_from(const json_t *value, Arena *a, Entry *entry)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        entry->kind = V_NULL, entry->text = "null";
        return OK;
    case JSON_TRUE:
        entry->kind = V_BOOL, entry->truth = true, entry->text = "true";
        return OK;
    case JSON_FALSE:
        entry->kind = V_BOOL, entry->text = "false";
        return OK;
    case JSON_INTEGER:
        entry->kind = V_INT;
        entry->whole = json_integer_value(value);
        entry->real = (double)entry->whole;
        return number_text(value, a, &entry->text);
    case JSON_REAL:
        entry->kind = V_REAL;
        entry->real = json_real_value(value);
        return number_text(value, a, &entry->text);
    case JSON_STRING:
        entry->kind = V_TEXT;
        return arena_string(a, json_string_value(value), &entry->text);
    case JSON_ARRAY:
        entry->kind = V_LIST;
        return list_text(value, a, &entry->text);
    case JSON_OBJECT:
        entry->kind = V_OBJECT, entry->text = json_object_size(value) ? "{...}" : "{}";
        return OK;
    }
    return OK;
}

static Err add_members(Entries *e, json_t *object, const char *prefix, const char *path)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const bool expands =
            strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_parameters") == 0 ||
            (strcmp(key, "quantization_config") == 0 && json_object_size(value) > 0);
        if (expands && !*prefix && json_is_object(value)) {
            TRY(add_members(e, value, key, path));
            continue;
        }
        Entry entry = {.origin = path};
        Text name = text_in(e->arena);
        text_add(&name, "%s%s%s", prefix, *prefix ? "." : "", key);
        TRY(text_done(&name, &entry.key));
        TRY(entry_from(value, e->arena, &entry));
        TRY(entries_add(e, &entry));
    }
    return OK;
}

Err entries_add_json(Entries *e, const char *path)
{
    const char *text;
    size_t length;
    TRY(text_read_file(path, MAX_JSON_BYTES, e->arena, &text, &length));
    return entries_add_json_text(e, path, text, length);
}

Err entries_add_json_text(Entries *e, const char *path, const char *text, size_t length)
{
    json_error_t why;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return err_fail(ERR_CONFIG, "%s:%d: not JSON: %s; correct the file there", path, why.line,
                        why.text);
    const Err err = json_is_object(root)
                        ? add_members(e, root, "", path)
                        : err_fail(ERR_CONFIG,
                                   "%s: a config.json is one object, {\"model_type\": "
                                   "...}; this file holds another value",
                                   path);
    json_decref(root);
    return err;
}
