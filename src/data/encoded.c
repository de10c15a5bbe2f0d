/* encoded.c -- encodes a text into a temporary token file and maps that. */
#define _POSIX_C_SOURCE 200809L
#include "data/encoded.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/text.h"
#include "data/encode.h"
#include "data/tokenize.h"

enum { TEMP_PATH_BYTES = 512 };

/* Finds the token that starts a document: of the tokenizer's template, else its end-of-text token,
 * which is then added to each document (*first). */
static Err find_start(const Tokens *t, const Tokenizer *tokenizer, int32_t *start, int32_t *first)
{
    *first = -1;
    *start = tokenizer->n_before > 0 ? tokenizer->before[0] : encode_end_of_text(tokenizer);
    if (tokenizer->n_before == 0) *first = *start;
    if (*start >= 0 || t->format == FORMAT_TEXT) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: %s has none of <|endoftext|>, <|end_of_text|> and </s> to put between "
                    "documents; make a token file with the token of your choice: sheaf data build "
                    "%s --tokenizer %s --eot TOKEN -o NAME.bin",
                    t->path, tokenizer->path, t->path, tokenizer->path);
}

static Err write_ids(const Tokens *t, const Tokenizer *tokenizer, int threads, Writer *w)
{
    BulkTokenizer z;
    int32_t start, first;
    TRY(find_start(t, tokenizer, &start, &first));
    w->start = start < 0 ? -1 : start + 1;
    TRY(tokenize_open(
        &z, &(TokenizeSettings){
                .of = tokenizer, .writer = w, .threads = threads, .first = first, .last = -1}));
    const Err err = t->format == FORMAT_JSONL ? tokenize_jsonl(&z, t->path, t->map[0])
                                              : tokenize_text(&z, t->map[0]);
    tokenize_close(&z);
    TRY(err);
    return writer_finish(w);
}

/* Writes the file and maps it. */
static Err encode_at(const char *path, const Tokens *t, const Tokenizer *tokenizer, int threads,
                     Arena *a, Tokens *out)
{
    Writer w;
    TRY(writer_open_ids(&w, path, FORMAT_TOKENS, tokenizer->n_ids));
    const Err err = write_ids(t, tokenizer, threads, &w);
    writer_close(&w);
    TRY(err);
    return tokens_open(path, FORMAT_TOKENS, a, out);
}

Err tokens_encode(Tokens *t, const Tokenizer *tokenizer, int threads, Arena *a)
{
    char dir[TEMP_PATH_BYTES], path[TEMP_PATH_BYTES + 16];
    const char *temp = getenv("TMPDIR");
    Tokens ids;
    if (!temp || !*temp) temp = "/tmp";
    if (snprintf(dir, sizeof dir, "%s/sheaf-tokens-XXXXXX", temp) >= (int)sizeof dir ||
        !mkdtemp(dir))
        return err_fail(ERR_IO,
                        "%.200s: no folder for the tokens of %s can be made there: %s; set TMPDIR, "
                        "or make a token file with `sheaf data build`",
                        temp, t->path, strerror(errno));
    snprintf(path, sizeof path, "%s/tokens.bin", dir);
    const Err err = encode_at(path, t, tokenizer, threads, a, &ids);
    (void)unlink(path); /* the mapping keeps the data */
    (void)rmdir(dir);
    TRY(err);
    ids.path = t->path;
    tokens_close(t);
    *t = ids;
    return OK;
}
