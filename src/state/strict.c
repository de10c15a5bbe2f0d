/* strict.c -- parses JSON with jansson under further limits. */
#include <stdlib.h>
#include <string.h>
#include "state/strict.h"

/* Returns the maximum nesting of brackets, outside of strings. */
static int depth_of(const char *text, size_t bytes)
{
    int open = 0, max = 0;
    bool string = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (string && c == '\\')
            i++;
        else if (c == '"')
            string = !string;
        else if (!string && (c == '{' || c == '['))
            max = ++open > max ? open : max;
        else if (!string && (c == '}' || c == ']'))
            open--;
    }
    return max;
}

Err strict_parse(const char *path, const char *text, size_t bytes, int depth, json_t **out)
{
    json_error_t why;
    const int deep = depth_of(text, bytes);
    if (deep > depth)
        return err_fail(ERR_CHECK, "%s: brackets nest %d deep; the limit is %d", path, deep, depth);
    json_t *o = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!o)
        return err_fail(ERR_CHECK, "%s: not %s, at byte %d: %s", path,
                        json_error_code(&why) == json_error_invalid_utf8 ? "UTF-8" : "good JSON",
                        why.position, why.text);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_fail(ERR_CHECK, "%s: JSON, but not an object", path);
    }
    *out = o;
    return OK;
}

bool strict_int(const json_t *x, int64_t lo, int64_t hi, int64_t *out)
{
    if (!json_is_integer(x)) return false;
    const int64_t value = json_integer_value(x);
    if (value < lo || value > hi) return false;
    *out = value;
    return true;
}

Err strict_members(const char *path, const char *what, const json_t *o, const char *const *name,
                   size_t n)
{
    const char *key;
    json_t *value;
    if (!json_is_object(o)) return err_fail(ERR_CHECK, "%s: %s is not an object", path, what);
    for (size_t i = 0; i < n; i++)
        if (!json_object_get(o, name[i]))
            return err_fail(ERR_CHECK, "%s: %s has no \"%s\"", path, what, name[i]);
    if (json_object_size(o) == n) return OK;
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(key, name[i]) != 0) i++;
        if (i == n)
            return err_fail(ERR_CHECK, "%s: %s has a \"%.60s\", which is not part of the format",
                            path, what, key);
    }
    return OK;
}

void strict_quote(Text *t, const char *text)
{
    if (t->err != OK) return;
    json_t *string = json_string(text);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    if (quoted)
        text_add(t, "%s", quoted);
    else
        t->err =
            err_fail(ERR_CHECK, "\"%.100s\" is not UTF-8, so it cannot be written as JSON", text);
    free(quoted);
    json_decref(string);
}
