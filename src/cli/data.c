/* data.c -- `sheaf data`: build, show and check; the first of them here.
 *
 *     sheaf data build IN... -o OUT [--format tokens|megatron] [--from auto|text|jsonl]
 *
 * Tokens are bytes. `tokens` is one file in llm.c's format, which has no place for the borders of
 * documents; `megatron` is a pair NAME.bin and NAME.idx that keeps them. */
#include "cli/data.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "cli/args.h"
#include "cli/say.h"
#include "cli/verbs.h"
#include "data/jsonl.h"
#include "data/map.h"
#include "data/writer.h"

enum { PIECE = 1 << 22 };

static const char *const usage =
    "sheaf data build IN... -o OUT    text and JSONL files to a token file, by bytes\n"
    "    --format tokens              llm.c's format, uint16; documents are joined (the default)\n"
    "    --format megatron            OUT.bin and OUT.idx, uint16; keeps the borders of documents\n"
    "    --from auto|text|jsonl       what IN is; auto: by its name. A text is one document,\n"
    "                                 each line of JSONL is one, its field \"text\"\n"
    "    --tokenizer bytes            a vocabulary of 256; there is no other yet\n"
    "sheaf data show FILE...          what a data file is, its tokens, documents and first tokens\n"
    "sheaf data check FILE...         read all of it; status 1 when something is wrong\n"
    "    --vocab N                    ids must be below N\n"
    "    --format F                   (show, check) auto, text, jsonl, tokens, megatron, uint16 "
    "or\n"
    "                                 uint32, as data.format";

int verb_data(int argc, char **argv)
{
    static const char *const names[] = {"build", "show", "check"};
    int (*const run[])(int, char **) = {data_build, data_show, data_check};
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0) return run[i](argc - 1, argv + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        puts(usage);
        return 0;
    }
    const char *near = text_nearest(word, names, 3);
    return cli_fail(err_fail(ERR_CONFIG,
                             "data: %.80s%swants build, show or check%s%s%s; `sheaf data --help` "
                             "says how",
                             word, *word ? ": " : "", near ? " (did you mean " : "",
                             near ? near : "", near ? "?)" : ""));
}

typedef struct {
    Words in;
    const char *out;
    TokenFormat from, format;
    Writer writer;
    int64_t bytes_done;
    Progress progress;
} Build;

static Err feed(Build *b, Bytes text)
{
    for (size_t at = 0; at < text.bytes; at += PIECE) {
        const size_t n = text.bytes - at < PIECE ? text.bytes - at : PIECE;
        TRY(writer_text(&b->writer, (Bytes){text.at + at, n}));
        progress_at(&b->progress, b->bytes_done + (int64_t)at);
    }
    return writer_end(&b->writer);
}

static Err feed_jsonl(Build *b, const char *path, Bytes data)
{
    Jsonl j = jsonl_open(path, data);
    const int64_t before = b->bytes_done;
    Bytes text;
    bool more = true;
    Err err;
    while ((err = jsonl_next(&j, &text, &more)) == OK && more) {
        if ((err = feed(b, text)) != OK) break;
        b->bytes_done = before + (int64_t)(data.bytes - j.left.bytes);
    }
    jsonl_close(&j);
    b->bytes_done = before;
    return err;
}

static Err build_bytes(Build *b, const char *path, Bytes data)
{
    TokenFormat from = b->from;
    if (from == FORMAT_AUTO && tokens_recognise(path, data, false, &from) != OK)
        return err_fail(ERR_CONFIG,
                        "data: %s: has NUL bytes, so it may be no text; `--from text` takes its "
                        "bytes as they are",
                        path);
    if (from == FORMAT_TOKENS)
        return err_fail(ERR_CONFIG, "data: %s: is a token file already; train on it as it is",
                        path);
    return from == FORMAT_JSONL ? feed_jsonl(b, path, data) : feed(b, data);
}

static Err build_file(Build *b, const char *path)
{
    Bytes data;
    TRY(map_file(path, &data));
    const Err err = build_bytes(b, path, data);
    b->bytes_done += (int64_t)data.bytes;
    unmap(&data);
    return err;
}

static Err total_bytes(const Words *in, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < in->n; i++) {
        Bytes data;
        TRY(map_file(in->at[i], &data));
        *out += (int64_t)data.bytes;
        unmap(&data);
    }
    return OK;
}

static Err build_all(Build *b)
{
    int64_t total;
    TRY(total_bytes(&b->in, &total));
    TRY(writer_open(&b->writer, b->out, b->format));
    b->progress = progress_begin("building", b->out, total);
    Err err = OK;
    for (int i = 0; i < b->in.n && err == OK; i++) err = build_file(b, b->in.at[i]);
    progress_end(&b->progress);
    if (err == OK) err = writer_finish(&b->writer);
    writer_close(&b->writer);
    return err;
}

static Err read_request(int argc, char **argv, Arena *a, Build *b)
{
    const char *from = "auto", *format = "tokens", *tokenizer = "bytes";
    const Flag flags[] = {{"-o", &b->out, NULL},
                          {"--format", &format, NULL},
                          {"--from", &from, NULL},
                          {"--tokenizer", &tokenizer, NULL}};
    TRY(args_words(argc, argv, flags, 4, a, &b->in));
    TRY(token_format_named(format, &b->format));
    TRY(token_format_named(from, &b->from));
    if (b->in.n == 0) return err_fail(ERR_CONFIG, "data build: no input; name text or JSONL files");
    if (!b->out) return err_fail(ERR_CONFIG, "data build: no output; name it with -o corpus.bin");
    if (b->from > FORMAT_JSONL)
        return err_fail(ERR_CONFIG, "data build: --from %s: input is text or jsonl", from);
    if (strcmp(tokenizer, "bytes") != 0)
        return err_fail(ERR_CONFIG,
                        "data build: --tokenizer %.80s: tokenizers are not read yet; bytes is the "
                        "only one",
                        tokenizer);
    return OK;
}

static void say_built(const Build *b)
{
    char tokens[COUNT_BYTES], documents[COUNT_BYTES];
    const int64_t n = b->writer.n_documents;
    const bool pair = b->format == FORMAT_MEGATRON;
    printf("%s: %s tokens in %s document%s, %s\n", b->out, say_count(b->writer.n_tokens, tokens),
           say_count(n, documents), n == 1 ? "" : "s",
           pair ? "a Megatron pair, uint16" : "a token file of llm.c, uint16");
    if (!pair && n > 1)
        puts("  the documents are joined: the format has no borders; --format megatron keeps them");
}

int data_build(int argc, char **argv)
{
    Arena arena;
    Build b = {0};
    if (arena_open(&arena, "data", ARENA_PLENTY) != OK) return cli_fail(ERR_NOMEM);
    Err err = read_request(argc, argv, &arena, &b);
    if (err == OK) err = build_all(&b);
    if (err == OK) say_built(&b);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
