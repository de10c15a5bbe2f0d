/* value.c -- one value: converted from text, checked against its limits and against the values that
 * this version supports.
 *
 *     optim.lr=abc     must be a number
 *     optim.beta1=1.5  too large; the most is 0.9999999
 *     mesh.ep=0        too small; the least is 1 */
#include "cli/config/layer_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 256, MAX_CHOICES = 32 };

/* ERR_CONFIG: "run.yaml:4: optim.lr=abc: " and the formatted reason. */
static Err refuse(const Key *key, const WrittenValue *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static Err refuse(const Key *key, const WrittenValue *value, const char *format, ...)
{
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return err_fail(ERR_CONFIG, "%s: %s=%.80s: %s", value->origin, key->path, value->text, why);
}

static Err check_limits(const Key *key, const WrittenValue *value, double number)
{
    if (number < key->low)
        return refuse(key, value, "too small; the least is %.15g (%s)", key->low, key->meaning);
    if (number > key->high)
        return refuse(key, value, "too large; the most is %.15g (%s)", key->high, key->meaning);
    return OK;
}

static Err read_int(const Key *key, const WrittenValue *value, int64_t *out)
{
    const bool can_be_auto = strcmp(key->fallback, "auto") == 0;
    char *end;
    if (can_be_auto && strcmp(value->text, "auto") == 0) {
        *out = 0; /* below every limit of such a key */
        return OK;
    }
    const long long whole = strtoll(value->text, &end, 10);
    if (end == value->text || strspn(value->text, "+-0123456789") != strlen(value->text) || *end)
        return refuse(key, value, "must be a whole number%s, as %s (%s)",
                      can_be_auto ? " or auto" : "", can_be_auto ? "4" : key->fallback,
                      key->meaning);
    TRY(check_limits(key, value, (double)whole)); /* strtoll saturates, so overflow is too large */
    *out = whole;
    return OK;
}

/* Accepts decimal numbers only; strtod alone would accept nan, inf and hexadecimal too. */
static Err read_float(const Key *key, const WrittenValue *value, double *out)
{
    char *end;
    const double number = strtod(value->text, &end);
    if (end == value->text || *end != '\0' ||
        strspn(value->text, "+-.0123456789eE") != strlen(value->text))
        return refuse(key, value, "must be a number, as %s (%s)", key->fallback, key->meaning);
    TRY(check_limits(key, value, number));
    *out = number;
    return OK;
}

static Err read_bool(const Key *key, const WrittenValue *value, bool *out)
{
    *out = strcmp(value->text, "true") == 0;
    if (*out || strcmp(value->text, "false") == 0) return OK;
    return refuse(key, value, "must be true or false (%s)", key->meaning);
}

/* Names that other tools use for a value. Their spelling is near none, or near another value: gpu
 * differs from cpu by one letter. */
static const struct {
    const char *path, *text, *hint;
} foreign_names[] = {
    {"run.device", "gpu", "NVIDIA cards are called cuda"},
    {"run.device", "nvidia", "NVIDIA cards are called cuda"},
    {"precision.compute", "fp32", "32-bit floats are called f32"},
    {"precision.compute", "float32", "32-bit floats are called f32"},
    {"precision.compute", "bfloat16", "bfloat16 is called bf16"},
    {"parallel.context", "usp", "USP is ring with mesh.cp_heads=N"},
    {"parallel.context", "zigzag", "zigzag is ring with parallel.tokens=zigzag"},
    {"parallel.context", "striped", "striped is ring with parallel.tokens=striped"},
    {"parallel.context", "p2p", "p2p is called ring"},
    {"parallel.context", "a2a", "a2a is called ulysses"},
    {"parallel.context", "a2a+p2p", "a2a+p2p is ring with mesh.cp_heads=N"},
    {"parallel.context", "allgather", "allgather is called gather"},
    {"parallel.context", "all_gather", "all_gather is called gather"},
    {"parallel.context", "distflashattn", "DistFlashAttn is called lightseq"},
};

/* The hint for the name that another tool uses, or NULL. */
static const char *foreign_hint(const Key *key, const char *text)
{
    for (size_t i = 0; i < sizeof foreign_names / sizeof *foreign_names; i++)
        if (strcmp(foreign_names[i].path, key->path) == 0 &&
            strcmp(foreign_names[i].text, text) == 0)
            return foreign_names[i].hint;
    return NULL;
}

static Err read_choice(const Key *key, const WrittenValue *value, Arena *a, Option *out)
{
    const char *texts[MAX_CHOICES], *list;
    Option first = 0;
    const int n = key_options(key, texts, &first);
    for (int i = 0; i < n; i++) {
        if (strcmp(texts[i], value->text) != 0) continue;
        *out = (Option)((int)first + i);
        return OK;
    }
    Text t = text_in(a);
    for (int i = 0; i < n; i++) text_add(&t, "%s%s", i ? ", " : "", texts[i]);
    TRY(text_done(&t, &list));
    const char *hint = foreign_hint(key, value->text);
    if (hint) return refuse(key, value, "%s; it is one of %s", hint, list);
    const char *nearest = text_nearest(value->text, texts, n);
    if (nearest) return refuse(key, value, "did you mean %s? It is one of %s", nearest, list);
    return refuse(key, value, "must be one of %s (%s)", list, key->meaning);
}

/* Copies the item at `text` to `item` and returns its length in `text`. A backslash makes a comma
 * or a backslash after it part of the item; any other backslash is a plain character. */
static size_t take_item(const char *text, char **item)
{
    size_t i = 0;
    for (; text[i] && text[i] != ','; i++) {
        if (text[i] == '\\' && (text[i + 1] == ',' || text[i + 1] == '\\')) i++;
        *(*item)++ = text[i];
    }
    *(*item)++ = '\0';
    return i;
}

Err list_items(const Key *key, const WrittenValue *value, Arena *a, TextList *out)
{
    const char **at;
    char *item;
    const char *rest = value->text;
    int n = 0;
    TRY(ARENA_NEW(a, MAX_LIST, &at));
    TRY(ARENA_NEW(a, strlen(rest) + 1, &item)); /* a comma or the NUL follows each item */
    while (*rest) {
        if (n == MAX_LIST)
            return refuse(key, value, "more than %d items; a * matches any sequence of letters",
                          MAX_LIST);
        at[n++] = item;
        const size_t length = take_item(rest, &item);
        if (length == 0 || (rest[length] == ',' && rest[length + 1] == '\0'))
            return refuse(key, value, "an empty item; remove the comma");
        rest += length + (rest[length] == ',');
    }
    *out = (TextList){n, at, value->text};
    return OK;
}

static bool is_word_of(const char *words, const char *text)
{
    if (!*words) return !*text;
    while (*words) {
        const size_t length = strcspn(words, " ");
        if (strlen(text) == length && strncmp(text, words, length) == 0) return true;
        words += length + (words[length] == ' ');
    }
    return false;
}

/* Compares as numbers, so that 1, 01 and +1 are equal. Words that are not numbers (auto) do not
 * match. */
static bool is_number_of(const char *words, double number)
{
    while (*words) {
        const size_t length = strcspn(words, " ");
        char *end;
        if (strtod(words, &end) == number && end == words + length) return true;
        words += length + (words[length] == ' ');
    }
    return false;
}

/* Runs after the conversion, so that an invalid value is reported as invalid and not as
 * unsupported. */
static Err check_works(const Key *key, const WrittenValue *value, double number)
{
    const bool is_number = key->type == KEY_INT || key->type == KEY_FLOAT;
    if (!key->works || is_word_of(key->works, value->text)) return OK;
    if (is_number && is_number_of(key->works, number)) return OK;
    if (!*key->works) return refuse(key, value, "not yet: %s; leave it out", key->why);
    return refuse(key, value, "not yet: %s; %s %s", key->why,
                  strchr(key->works, ' ') ? "the values that work are" : "the only value is",
                  key->works);
}

/* Checks list, quotes and emptiness, which do not depend on the value itself. */
static Err check_form(const Key *key, const WrittenValue *value)
{
    const bool texts = key->type == KEY_TEXT || key->type == KEY_LIST;
    if (value->sequence && key->type != KEY_LIST)
        return refuse(key, value, "a list, and the key takes one value (%s)", key->meaning);
    if (value->quoted && !texts && key->type != KEY_CHOICE)
        return refuse(key, value, "a text in quotes; remove the quotes (%s)", key->meaning);
    const bool null = strcmp(value->text, "null") == 0 || strcmp(value->text, "~") == 0;
    if (!value->quoted && (null || (!*value->text && *key->fallback)))
        return refuse(key, value, "no value; write one%s%s, or remove the key",
                      *key->fallback ? ", as " : "", key->fallback);
    return OK;
}

Err key_convert(KeyId id, const WrittenValue *value, Arena *a, Config *c)
{
    const Key *key = key_at(id);
    void *member = (char *)c + key->member;
    double number = 0;
    TRY(check_form(key, value));
    switch (key->type) {
    case KEY_INT:
        TRY(read_int(key, value, member));
        number = (double)*(int64_t *)member;
        break;
    case KEY_FLOAT:
        TRY(read_float(key, value, member));
        number = *(double *)member;
        break;
    case KEY_BOOL:
        TRY(read_bool(key, value, member));
        break;
    case KEY_CHOICE:
        TRY(read_choice(key, value, a, member));
        break;
    case KEY_LIST:
        TRY(list_items(key, value, a, member));
        break;
    case KEY_TEXT:
        *(const char **)member = value->text;
        break;
    }
    TRY(check_works(key, value, number));
    c->origin[id] = value->origin;
    return OK;
}

Err key_set(KeyId id, const WrittenValue *value, Arena *a, Config *c)
{
    WrittenValue rest;
    TRY(layer_rules_take(id, value, a, c, &rest));
    return key_convert(id, &rest, a, c);
}
