/* show.c -- `sheaf data show` and `sheaf data check`: a scan of all tokens of a file.
 *
 *     $ sheaf data show corpus.bin
 *     corpus.bin: a token file of llm.c, uint16
 *       tokens     1,115,394 (2.1 MiB)
 *       documents  1
 *       ids        10 to 122, 65 different; needs model.vocab_size=123 or more
 *       starts     "First Citizen:\nBefore we proceed any further, hear me speak." */
#include "cli/data/data.h"
#include "cli/data/clips.h"
#include "state/clip_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "cli/args.h"
#include "cli/progress.h"
#include "cli/verbs.h"

enum { PIECE = 1 << 22, TEXT_TOKENS = 72, ID_TOKENS = 12, WORD_TOKENS = 24 };

/* Scans the file in pieces; `vocab` > 0 checks that ids are below it. */
static Err scan(const Tokens *t, const char *what, int64_t vocab, Arena *a, TokenStats *seen)
{
    ProgressLine p = progress_begin(what, t->path, t->n_tokens);
    Err err = token_stats_init(seen, a);
    for (int64_t at = 0; at < t->n_tokens && err == OK; at += PIECE) {
        const int64_t to = t->n_tokens - at < PIECE ? t->n_tokens : at + PIECE;
        err = tokens_scan(t, at, to, vocab, seen);
        progress_at(&p, to);
    }
    progress_end(&p);
    return err;
}

/* Prints bytes escaped as in a C string; UTF-8 is printed unescaped. */
static void print_bytes(Bytes text)
{
    for (size_t i = 0; i < text.bytes; i++) {
        const int c = text.at[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 32 || c == 127)
            printf("\\x%02x", (unsigned)c);
        else
            putchar(c);
    }
}

/* Prints the text of the first n tokens, decoded by the tokenizer, or as bytes without one. */
static void print_text(const Tokens *t, int64_t n, const Tokenizer *tokenizer)
{
    putchar('"');
    for (int64_t i = 0; i < n; i++) {
        const int64_t id = tokens_at(t, i);
        const unsigned char byte = (unsigned char)id;
        print_bytes(tokenizer ? tokenizer_bytes(tokenizer, id) : (Bytes){&byte, 1});
    }
    puts(n < t->n_tokens ? "\" ..." : "\"");
}

static void print_ids(const Tokens *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++) printf("%s%lld", i ? " " : "", (long long)tokens_at(t, i));
    puts(n < t->n_tokens ? " ..." : "");
}

static int64_t at_most(const Tokens *t, int64_t n) { return t->n_tokens < n ? t->n_tokens : n; }

static void print_start(const Tokens *t, const TokenStats *seen, const Tokenizer *tokenizer)
{
    const bool bytes = !tokenizer && seen->low >= 0 && seen->high < BYTE_VOCAB;
    fputs("  starts     ", stdout);
    if (!bytes) print_ids(t, at_most(t, ID_TOKENS));
    if (tokenizer) fputs("             ", stdout);
    if (bytes || tokenizer) print_text(t, at_most(t, bytes ? TEXT_TOKENS : WORD_TOKENS), tokenizer);
}

static const char *border_words(const Tokens *t, const TokenStats *seen, char *buffer, size_t bytes)
{
    buffer[0] = '\0';
    if (t->start_token >= 0 && seen->n_documents > 1)
        snprintf(buffer, bytes, ", each starts with token %lld, as in llm.c",
                 (long long)t->start_token);
    return buffer;
}

Err data_describe(const Tokens *t, const Tokenizer *tokenizer, Arena *a)
{
    TokenStats seen;
    char count[COUNT_BYTES], bytes[24], words[80], documents[COUNT_BYTES];
    const bool by_bytes = t->format == FORMAT_TEXT || t->format == FORMAT_JSONL;
    TRY(scan(t, "reading", 0, a, &seen));
    printf("%s: %s\n", t->path, tokens_describe(t));
    printf("  tokens     %s (%s)\n", grouped_digits(t->n_tokens, count),
           text_bytes(t->n_tokens * t->width, bytes));
    printf("  documents  %s%s\n", grouped_digits(seen.n_documents, documents),
           border_words(t, &seen, words, sizeof words));
    if (t->n_tokens == 0) return OK;
    printf("  ids        %lld to %lld, %s different; ", (long long)seen.low, (long long)seen.high,
           grouped_digits(seen.n_ids, count));
    if (seen.low < 0)
        puts("ids below 0 are invalid: the file has another format");
    else
        printf("needs model.vocab_size=%lld or more\n",
               (long long)(by_bytes ? BYTE_VOCAB : seen.high + 1));
    print_start(t, &seen, tokenizer);
    return OK;
}

typedef struct {
    PlainArgs files;
    TokenFormat format;
    int64_t vocab;        /* 0: not given */
    Tokenizer *tokenizer; /* NULL: not given */
} ShowRequest;

static Err read_request(int argc, char **argv, bool checks, Arena *a, ShowRequest *r)
{
    const char *format = "auto", *vocab = NULL, *tokenizer = "bytes";
    const Flag flags[] = {{"--format", &format, NULL},
                          checks ? (Flag){"--vocab", &vocab, NULL}
                                 : (Flag){"--tokenizer", &tokenizer, NULL}};
    char *end = NULL;
    TRY(args_plain(argc, argv, flags, 2, a, &r->files));
    TRY(token_format_named(format, &r->format));
    if (r->files.n == 0) return err_fail(ERR_CONFIG, "data %s: no file; give one or more", argv[0]);
    if (strcmp(tokenizer, "bytes") != 0) TRY(tokenizer_load(tokenizer, a, &r->tokenizer));
    if (!vocab) return OK;
    r->vocab = strtoll(vocab, &end, 10);
    if (end == vocab || *end || r->vocab < 1 || r->vocab > INT32_MAX)
        return err_fail(ERR_CONFIG,
                        "data check: --vocab %.40s: must be the number of ids, 1 to %ld", vocab,
                        (long)INT32_MAX);
    return OK;
}

static Err show_clips(const ShowRequest *r, const char *path, Arena *a)
{
    if (r->tokenizer || r->vocab)
        return err_fail(ERR_CONFIG, "data %s is for tokens, and %s has clips; leave it out",
                        r->vocab ? "check: --vocab" : "show: --tokenizer", path);
    return clip_show(path, a);
}

static Err show_file(const ShowRequest *r, const char *path, Arena *a)
{
    Tokens t;
    if (r->format == FORMAT_AUTO && clip_path_is(path)) return show_clips(r, path, a);
    TRY(tokens_open(path, r->format, a, &t));
    const Err err = data_describe(&t, r->tokenizer, a);
    tokens_close(&t);
    return err;
}

static Err check_tokens(const ShowRequest *r, const Tokens *t, Arena *a)
{
    TokenStats seen;
    char count[COUNT_BYTES], documents[COUNT_BYTES];
    TRY(scan(t, "checking", r->vocab ? r->vocab : INT32_MAX, a, &seen));
    if (t->n_tokens == 0) return err_fail(ERR_CHECK, "%s: contains no token", t->path);
    printf("%s: valid: %s, %s tokens in %s document%s, ids %lld to %lld\n", t->path,
           tokens_describe(t), grouped_digits(t->n_tokens, count),
           grouped_digits(seen.n_documents, documents), seen.n_documents == 1 ? "" : "s",
           (long long)seen.low, (long long)seen.high);
    return OK;
}

static Err check_file(const ShowRequest *r, const char *path, Arena *a)
{
    Tokens t;
    if (r->format == FORMAT_AUTO && clip_path_is(path)) return show_clips(r, path, a);
    TRY(tokens_open(path, r->format, a, &t));
    const Err err = check_tokens(r, &t, a);
    tokens_close(&t);
    return err;
}

/* Calls of_file for each file, also after an error; returns the highest exit status. */
static int for_files(int argc, char **argv, bool checks,
                     Err (*of_file)(const ShowRequest *, const char *, Arena *))
{
    Arena arena;
    ShowRequest r = {0};
    if (arena_open(&arena, "data", ARENA_PLENTY) != OK) return cli_fail(ERR_NOMEM);
    const Err asked = read_request(argc, argv, checks, &arena, &r);
    int status = asked == OK ? 0 : cli_fail(asked);
    for (int i = 0; i < r.files.n && asked == OK; i++) {
        const size_t mark = arena_mark(&arena);
        const Err err = of_file(&r, r.files.at[i], &arena);
        if (err != OK) {
            const int worse = cli_fail(err);
            if (worse > status) status = worse;
        }
        arena_rewind(&arena, mark);
    }
    if (r.tokenizer) tokenizer_close(r.tokenizer);
    arena_close(&arena);
    return status;
}

int data_show(int argc, char **argv) { return for_files(argc, argv, false, show_file); }
int data_check(int argc, char **argv) { return for_files(argc, argv, true, check_file); }
