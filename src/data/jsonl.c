/* jsonl.c -- iterates over JSONL lines with jansson, and parses a whole file as tokens. */
#include "data/jsonl.h"

#include <jansson.h>
#include <string.h>
#include "data/tokens_parts.h"

/* The limit, because texts are decoded into memory. Larger files must be built into a
 * token file. */
static const size_t max_bytes = (size_t)1 << 30;

/* Skips a byte order mark, which some editors put before the first line. */
Jsonl jsonl_open(const char *path, Bytes data)
{
    const size_t mark = data.bytes >= 3 && memcmp(data.at, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    return (Jsonl){.path = path, .left = {data.at + mark, data.bytes - mark}};
}

void jsonl_close(Jsonl *j)
{
    json_decref(j->value);
    j->value = NULL;
}

/* Lists the members of an object, for the message about a missing "text". */
static void list_names(json_t *object, char *out, size_t bytes)
{
    const char *name;
    json_t *value;
    size_t used = 0;
    out[0] = '\0';
    json_object_foreach(object, name, value)
    {
        if (used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%.40s", used ? ", " : "", name);
    }
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

static Err text_of(Jsonl *j, Bytes *text)
{
    char names[128];
    json_t *field = json_object_get(j->value, "text");
    if (!json_is_object((json_t *)j->value))
        return err_fail(ERR_CHECK,
                        "%s:%lld: not a JSON object; each line of JSONL is one, as {\"text\": "
                        "\"...\"}",
                        j->path, (long long)j->line);
    list_names(j->value, names, sizeof names);
    if (!field)
        return err_fail(
            ERR_CHECK,
            "%s:%lld: there is no \"text\" in the object (it has: %s); name the field so", j->path,
            (long long)j->line, *names ? names : "nothing");
    if (!json_is_string(field))
        return err_fail(ERR_CHECK, "%s:%lld: \"text\" is %s; it must be a string", j->path,
                        (long long)j->line, type_name(field));
    *text = (Bytes){(const unsigned char *)json_string_value(field), json_string_length(field)};
    return OK;
}

static bool is_blank(Bytes line)
{
    for (size_t i = 0; i < line.bytes; i++)
        if (!strchr(" \t\r", line.at[i]) || line.at[i] == '\0') return false;
    return true;
}

/* Returns the line and advances past its newline. */
static Bytes next_line(Jsonl *j)
{
    const unsigned char *end = memchr(j->left.at, '\n', j->left.bytes);
    const Bytes line = {j->left.at, end ? (size_t)(end - j->left.at) : j->left.bytes};
    const size_t used = line.bytes + (end != NULL);
    j->left = (Bytes){j->left.at + used, j->left.bytes - used};
    j->line++;
    return line;
}

Err jsonl_next(Jsonl *j, Bytes *text, bool *more)
{
    json_error_t why;
    while (j->left.bytes > 0) {
        const Bytes line = next_line(j);
        if (is_blank(line)) continue;
        jsonl_close(j);
        j->value = json_loadb((const char *)line.at, line.bytes,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
        if (!j->value)
            return err_fail(ERR_CHECK, "%s:%lld:%d: not JSON: %s; correct the line", j->path,
                            (long long)j->line, why.column, why.text);
        *more = true;
        return text_of(j, text);
    }
    *more = false;
    return OK;
}

typedef struct {
    int64_t tokens, documents;
} JsonlCounts;

/* Counts tokens and documents. Also copies them if `token` and `start` are not NULL. */
static Err walk(const char *path, Bytes data, unsigned char *token, int64_t *start,
                JsonlCounts *out)
{
    Jsonl j = jsonl_open(path, data);
    JsonlCounts n = {0};
    Bytes text;
    bool more = true;
    Err err;
    while ((err = jsonl_next(&j, &text, &more)) == OK && more) {
        if (start) start[n.documents] = n.tokens;
        if (token) memcpy(token + n.tokens, text.at, text.bytes);
        n.tokens += (int64_t)text.bytes;
        n.documents++;
    }
    jsonl_close(&j);
    *out = n;
    return err;
}

Err parse_jsonl(Bytes data, Arena *a, Tokens *t)
{
    JsonlCounts n;
    unsigned char *token;
    int64_t *start;
    if (data.bytes > max_bytes)
        return err_fail(ERR_CONFIG,
                        "%s: has %zu bytes, and JSONL is read into memory up to %zu; make a token "
                        "file of it: sheaf data build %s --format megatron -o NAME.bin",
                        t->path, data.bytes, max_bytes, t->path);
    TRY(walk(t->path, data, NULL, NULL, &n));
    TRY(ARENA_NEW(a, n.tokens, &token));
    TRY(ARENA_NEW(a, n.documents, &start));
    TRY(walk(t->path, data, token, start, &n));
    t->width = 1;
    t->first = token;
    t->first_byte = -1;
    t->n_tokens = n.tokens;
    t->start = start;
    t->n_starts = n.documents;
    return OK;
}
