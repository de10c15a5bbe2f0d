/* tasks.c -- parses lines of JSON as multiple-choice tasks. */
#include "data/tasks.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"

static const size_t max_bytes = (size_t)1 << 30;

typedef struct {
    const char *path;
    int line;
    Arena *arena;
} TaskLine;

static Err bad(const TaskLine *w, const char *what)
{
    return err_fail(ERR_CHECK,
                    "%s:%d: %s; a line is {\"context\": \"...\", \"choices\": [\"...\", ...], "
                    "\"gold\": 0}",
                    w->path, w->line, what);
}

/* Returns the member with one of these names; NULL: none. */
static const json_t *member(const json_t *o, const char *const *name, int n)
{
    const json_t *found = NULL;
    for (int i = 0; i < n && !found; i++) found = json_object_get(o, name[i]);
    return found;
}

static Err copy_text(const TaskLine *w, const char *before, const json_t *text, Bytes *out)
{
    char *at;
    const size_t gap = strlen(before), n = json_string_length(text);
    TRY(ARENA_NEW(w->arena, gap + n + 1, &at));
    memcpy(at, before, gap);
    memcpy(at + gap, json_string_value(text), n);
    *out = (Bytes){(const unsigned char *)at, gap + n};
    return OK;
}

static Err read_gold(const TaskLine *w, const json_t *gold, ChoiceTask *t)
{
    char *end = NULL;
    long long at = -1;
    if (json_is_integer(gold)) at = (long long)json_integer_value(gold);
    if (json_is_string(gold) && *json_string_value(gold)) {
        at = strtoll(json_string_value(gold), &end, 10);
        if (*end) at = -1;
    }
    if (at < 0 || at >= t->n) return bad(w, "gold is not the index of a choice");
    t->gold = (int)at;
    return OK;
}

static bool is_space(const unsigned char *c) { return isspace(*c) != 0; }

/* Moves white space from the end of the context to the choices, so that tokens that begin with a
 * space stay whole. */
static Err take_gap(const TaskLine *w, ChoiceTask *t, const char **gap)
{
    size_t n = t->context.bytes;
    char *copy;
    while (n > 0 && is_space(&t->context.at[n - 1])) n--;
    TRY(ARENA_NEW(w->arena, t->context.bytes - n + 1, &copy));
    memcpy(copy, t->context.at + n, t->context.bytes - n);
    t->context.bytes = n;
    *gap = copy;
    return OK;
}

/* Counts characters, by which the common harness normalizes scores. JSON strings are
 * valid UTF-8. */
static int64_t count_characters(const json_t *text)
{
    int64_t n = 0;
    for (size_t i = 0; i < json_string_length(text); i++)
        n += ((unsigned char)json_string_value(text)[i] & 0xC0) != 0x80;
    return n;
}

static Err read_tasks(const TaskLine *w, const json_t *list, ChoiceTask *t)
{
    const char *gap;
    t->n = (int)json_array_size(list);
    if (t->n < 2 || t->n > 1 << 16) return bad(w, "choices are a list of two or more");
    TRY(take_gap(w, t, &gap));
    TRY(ARENA_NEW(w->arena, t->n, &t->choice));
    TRY(ARENA_NEW(w->arena, t->n, &t->length));
    for (int i = 0; i < t->n; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        if (!json_is_string(one) || json_string_length(one) == 0)
            return bad(w, "a choice is not a string, or is empty");
        const bool open = t->context.bytes > 0 && !*gap &&
                          !is_space((const unsigned char *)json_string_value(one));
        TRY(copy_text(w, open ? " " : gap, one, &t->choice[i]));
        t->length[i] = count_characters(one);
    }
    return OK;
}

static Err read_task(const TaskLine *w, const json_t *root, ChoiceTask *t)
{
    static const char *const context[] = {"context", "query", "ctx"};
    static const char *const choices[] = {"choices", "endings"};
    static const char *const gold[] = {"gold", "label"};
    const json_t *text = member(root, context, 3), *list = member(root, choices, 2);
    if (!json_is_object(root)) return bad(w, "not a JSON object");
    if (!json_is_string(text)) return bad(w, "no string context, query or ctx");
    if (!json_is_array(list)) return bad(w, "no list choices or endings");
    if (!member(root, gold, 2)) return bad(w, "no gold or label");
    TRY(copy_text(w, "", text, &t->context));
    TRY(read_tasks(w, list, t));
    return read_gold(w, member(root, gold, 2), t);
}

Err tasks_parse(const char *path, Bytes data, Arena *a, ChoiceTasks *out)
{
    TaskLine w = {path, 0, a};
    int64_t lines = 1;
    for (size_t i = 0; i < data.bytes; i++) lines += data.at[i] == '\n';
    *out = (ChoiceTasks){0};
    TRY(ARENA_NEW(a, lines, &out->task));
    for (size_t at = 0, n; at < data.bytes; at += n + 1) {
        const unsigned char *end = memchr(data.at + at, '\n', data.bytes - at);
        json_error_t why;
        bool blank = true;
        n = end ? (size_t)(end - data.at) - at : data.bytes - at;
        w.line++;
        for (size_t i = 0; i < n; i++) blank = blank && is_space(&data.at[at + i]);
        if (blank) continue;
        json_t *root = json_loadb((const char *)data.at + at, n,
                                  JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
        const Err err = root ? read_task(&w, root, &out->task[out->n]) : bad(&w, why.text);
        json_decref(root);
        TRY(err);
        out->n_choices += out->task[out->n++].n;
    }
    if (out->n == 0) return err_fail(ERR_CHECK, "%s: contains no task", path);
    return OK;
}

Err tasks_read(const char *path, Arena *a, ChoiceTasks *out)
{
    const char *text;
    size_t bytes;
    TRY(text_read_file(path, max_bytes, a, &text, &bytes));
    return tasks_parse(path, (Bytes){(const unsigned char *)text, bytes}, a, out);
}
