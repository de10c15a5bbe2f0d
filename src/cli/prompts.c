/* prompts.c -- prompts to tokens.
 *
 *     One morning                       text file: one prompt per line
 *     {"prompt": "One morning"}         file named *.jsonl: a text
 *     {"ids": [12, 7, 99]}              file named *.jsonl: tokens */
#include "cli/prompts.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPTS = 1 << 20 };
static const size_t max_prompt_bytes = (size_t)1 << 28;

typedef struct {
    const InferContext *infer;
    const PromptArgs *words;
    Arena *arena;
    Prompts *out;
    char where[300]; /* "prompts.txt:3", or "-p" */
} PromptReader;

static Err bad_id(const PromptReader *r, long long id)
{
    return err_fail(ERR_CONFIG, "%s: token %lld: the model has tokens 0 to %lld", r->where, id,
                    (long long)r->infer->source.model.vocab - 1);
}

/* Adds one prompt. prompts_read has allocated an entry for each line. */
static Err add_prompt(PromptReader *r, EncodedText ids, Bytes text)
{
    Prompts *p = r->out;
    if (ids.n == 0)
        return err_fail(ERR_CONFIG, "%s: the prompt is empty; generation needs at least one token",
                        r->where);
    for (int64_t i = 0; i < ids.n; i++)
        if (ids.id[i] < 0 || ids.id[i] >= r->infer->source.model.vocab) return bad_id(r, ids.id[i]);
    p->prompt[p->n] = (Prompt){ids.id, ids.n};
    p->text[p->n++] = text;
    if (ids.n > p->longest) p->longest = ids.n;
    return OK;
}

/* Adds a prompt of ids. Its text is the decoded ids, NUL bytes included, or empty without a
 * tokenizer. */
static Err add_ids(PromptReader *r, EncodedText ids)
{
    Bytes text = {NULL, 0};
    if (!r->infer->no_text) TRY(decode_text(r->infer->tokenizer, &ids, r->arena, &text));
    return add_prompt(r, ids, text);
}

/* Reads ids separated by white space or commas, as --ids prints them or a list has them. */
static Err read_numbers(PromptReader *r, Bytes text)
{
    EncodedText ids = {0};
    const char *at = (const char *)text.at, *end = at + text.bytes;
    TRY(ARENA_NEW(r->arena, text.bytes + 1, &ids.id));
    for (;;) {
        while (at < end && (isspace((unsigned char)*at) || *at == ',')) at++;
        if (at == end) break;
        char *stop;
        const long long id = strtoll(at, &stop, 10);
        if (stop == at)
            return err_fail(ERR_CONFIG, "%s: %.20s: with --ids a prompt must be token ids",
                            r->where, at);
        if (id < 0 || id >= r->infer->source.model.vocab) return bad_id(r, id);
        ids.id[ids.n++] = (int32_t)id;
        at = stop;
    }
    return add_ids(r, ids);
}

static Err add_text(PromptReader *r, Bytes text)
{
    EncodedText ids;
    if (r->words->ids) return read_numbers(r, text);
    if (r->infer->no_text)
        return err_fail(ERR_CONFIG,
                        "%s: %s has no tokenizer.json; give one with --tokenizer FILE (bytes: one "
                        "token per byte), or use token ids with --ids",
                        r->where, r->infer->source.dir);
    TRY(infer_encode(r->infer, r->where, text, r->arena, &ids));
    return add_prompt(r, ids, text);
}

static Err add_list(PromptReader *r, const json_t *list)
{
    EncodedText ids = {0};
    TRY(ARENA_NEW(r->arena, json_array_size(list) + 1, &ids.id));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const json_int_t id = json_integer_value(one);
        if (!json_is_integer(one))
            return err_fail(ERR_CONFIG, "%s: ids[%zu] is not a whole number", r->where, i);
        if (id < 0 || id >= r->infer->source.model.vocab) return bad_id(r, (long long)id);
        ids.id[ids.n++] = (int32_t)id;
    }
    return add_ids(r, ids);
}

/* Reads one line of JSONL. Other members of the object (a number, an answer) are ignored. */
static Err add_json(PromptReader *r, Bytes line)
{
    json_error_t why;
    Err err = OK;
    json_t *root = json_loadb((const char *)line.at, line.bytes,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    const json_t *text = json_object_get(root, "prompt"), *list = json_object_get(root, "ids");
    if (json_is_string(text) && !list) {
        void *copy;
        const size_t bytes = json_string_length(text);
        err = arena_push(r->arena, bytes + 1, &copy);
        if (err == OK) memcpy(copy, json_string_value(text), bytes + 1);
        if (err == OK) err = add_text(r, (Bytes){copy, bytes});
    } else if (json_is_array(list) && !text) {
        err = add_list(r, list);
    } else {
        err = err_fail(ERR_CONFIG, "%s: must be {\"prompt\": \"text\"} or {\"ids\": [1, 2]}%s%s",
                       r->where, root ? "" : ": not JSON: ", root ? "" : why.text);
    }
    json_decref(root);
    return err;
}

/* Reads one prompt per line; empty lines are skipped, and a final \r is removed. */
static Err read_lines(PromptReader *r, const char *text, size_t bytes)
{
    const char *path = r->words->file;
    const size_t length = strlen(path);
    const bool json = length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
    int line = 0;
    for (size_t at = 0, n; at < bytes; at += n + 1) {
        const char *end = memchr(text + at, '\n', bytes - at);
        n = end ? (size_t)(end - text) - at : bytes - at;
        Bytes one = {(const unsigned char *)text + at, n};
        snprintf(r->where, sizeof r->where, "%.250s:%d", path, ++line);
        if (one.bytes && one.at[one.bytes - 1] == '\r') one.bytes--;
        if (one.bytes == 0) continue;
        TRY(json ? add_json(r, one) : add_text(r, one));
    }
    return OK;
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t n = 1;
    for (size_t i = 0; i < bytes; i++) n += text[i] == '\n';
    return n;
}

Err prompts_read(const InferContext *ctx, const PromptArgs *words, Arena *a, Prompts *out)
{
    const char *text = "";
    size_t bytes = 0;
    PromptReader r = {.infer = ctx, .words = words, .arena = a, .out = out, .where = "-p"};
    *out = (Prompts){0};
    if (!words->text == !words->file)
        return err_fail(
            ERR_CONFIG,
            "generate: %s; give -p \"TEXT\", or --prompts FILE with one prompt per line",
            words->text ? "-p and --prompts" : "no prompt");
    if (words->file) TRY(text_read_file(words->file, max_prompt_bytes, a, &text, &bytes));
    const int64_t most = count_lines(text, bytes);
    if (most > MAX_PROMPTS)
        return err_fail(ERR_CONFIG, "%s: %lld lines; at most %d prompts at once", words->file,
                        (long long)most, MAX_PROMPTS);
    TRY(ARENA_NEW(a, most, &out->prompt));
    TRY(ARENA_NEW(a, most, &out->text));
    if (words->file)
        TRY(read_lines(&r, text, bytes));
    else
        TRY(add_text(&r, (Bytes){(const unsigned char *)words->text, strlen(words->text)}));
    if (out->n == 0) return err_fail(ERR_CONFIG, "%s: contains no prompt", words->file);
    return OK;
}
