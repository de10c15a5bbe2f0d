/* tokenizer_json.c -- reads a tokenizer.json section by section; helpers for members
 * and messages. */
#include "data/tokenizer_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/text.h"

enum { MAX_TOKENIZER_BYTES = 1 << 28 };

int file_message(const TokenizerFile *f, const char *where, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return err_keep("%s: %s%s%s", f->path, where, *where ? ": " : "", what);
}

Err file_member(const TokenizerFile *f, const char *where, const char *name, const char **out)
{
    Text t = text_in(f->arena);
    text_add(&t, "%s%s%.80s", where, *where ? "." : "", name);
    return text_done(&t, out);
}

Err file_item(const TokenizerFile *f, const char *where, size_t i, const char **out)
{
    Text t = text_in(f->arena);
    text_add(&t, "%s[%zu]", where, i);
    return text_done(&t, out);
}

static bool is_among(const char *name, const char *names)
{
    const size_t length = strlen(name);
    for (const char *at = names; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (n == length && strncmp(at, name, n) == 0) return true;
        at += n;
    }
    return false;
}

Err file_object(const TokenizerFile *f, const char *where, json_t *value, const char *names)
{
    const char *name, *place;
    json_t *member;
    if (!json_is_object(value)) return file_refuse(f, where, "must be an object");
    json_object_foreach(value, name, member)
    {
        if (is_among(name, names)) continue;
        TRY(file_member(f, where, name, &place));
        return file_refuse(f, place, "is not known here; known are: %s", names);
    }
    return OK;
}

Err file_text(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              const char **out)
{
    json_t *value = json_object_get(object, name);
    if (json_is_string(value)) return *out = json_string_value(value), OK;
    return file_refuse(f, where, "must have a string \"%s\"", name);
}

Err file_bool(const TokenizerFile *f, const char *where, json_t *object, const char *name,
              bool *out)
{
    json_t *value = json_object_get(object, name);
    if (json_is_boolean(value)) return *out = json_is_true(value), OK;
    return file_refuse(f, where, "\"%s\" must be true or false", name);
}

Err file_id(const TokenizerFile *f, const char *where, json_t *value, int64_t *out)
{
    const int64_t id = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    if (id < 0 || id >= MAX_TOKENIZER_IDS)
        return file_refuse(f, where, "an id is a whole number from 0 to %d", MAX_TOKENIZER_IDS - 1);
    *out = id;
    return OK;
}

/* Refuses sections that are supported only as null. */
static Err check_null(const TokenizerFile *f, json_t *root, const char *name)
{
    json_t *value = json_object_get(root, name);
    if (!value || json_is_null(value)) return OK;
    return file_refuse(f, name,
                       "is not supported: texts are neither truncated nor padded; set it to null");
}

static Err check_version(const TokenizerFile *f, json_t *root)
{
    const char *version;
    TRY(file_text(f, "", root, "version", &version));
    if (strcmp(version, "1.0") == 0) return OK;
    return file_refuse(f, "version", "\"%.40s\"; only 1.0 is supported", version);
}

static Err read_parts(TokenizerFile *f, json_t *root)
{
    TRY(file_object(f, "", root,
                    "version truncation padding added_tokens normalizer pre_tokenizer "
                    "post_processor decoder model"));
    TRY(check_version(f, root));
    TRY(check_null(f, root, "truncation"));
    TRY(check_null(f, root, "padding"));
    TRY(file_normalizer(f, json_object_get(root, "normalizer")));
    TRY(file_vocab(f, json_object_get(root, "model")));
    TRY(unicode_traits(f->arena, &f->t->traits));
    TRY(file_added(f, json_object_get(root, "added_tokens")));
    TRY(file_merges(f, json_object_get(root, "model")));
    TRY(file_post_processor(f, json_object_get(root, "post_processor")));
    TRY(file_decoder(f, json_object_get(root, "decoder")));
    return file_pre_tokenizer(f, json_object_get(root, "pre_tokenizer"));
}

static Err read_text(TokenizerFile *f, const char *text, size_t length)
{
    json_error_t why;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return err_fail(ERR_CONFIG, "%s:%d: not JSON: %s; give a tokenizer.json", f->path, why.line,
                        why.text);
    const Err err = json_is_object(root)
                        ? read_parts(f, root)
                        : file_refuse(f, "",
                                      "a tokenizer.json is one object; this file holds "
                                      "another value");
    json_decref(root);
    if (err != OK) tokenizer_close(f->t);
    return err;
}

Err tokenizer_file(const char *path, Arena *a, const char **out)
{
    struct stat st;
    *out = path;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return OK;
    Text t = text_in(a);
    text_add(&t, "%s%stokenizer.json", path, path[strlen(path) - 1] == '/' ? "" : "/");
    TRY(text_done(&t, out));
    if (stat(*out, &st) == 0) return OK;
    return err_fail(ERR_CONFIG, "%s: the folder contains no tokenizer.json; give the file", path);
}

Err tokenizer_load(const char *path, Arena *a, Tokenizer **out)
{
    Arena temp;
    const char *text;
    size_t length;
    TRY(tokenizer_file(path, a, &path));
    TokenizerFile f = {.path = path, .arena = a};
    TRY(ARENA_NEW(a, 1, &f.t));
    f.t->path = path;
    TRY(arena_open(&temp, "tokenizer file", 2 * (size_t)MAX_TOKENIZER_BYTES));
    Err err = text_read_file(path, MAX_TOKENIZER_BYTES, &temp, &text, &length);
    if (err == OK) err = read_text(&f, text, length);
    arena_close(&temp);
    if (err == OK) *out = f.t;
    return err;
}
