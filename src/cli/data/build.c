/* build.c -- `sheaf data build`: converts text and JSONL to a token file. Clips of latents are
 * left to clips.c.
 *
 *     sheaf data build IN... -o OUT [--tokenizer FILE] [--format tokens|megatron]
 *                      [--from auto|text|jsonl]
 *
 * Tokens are bytes, or those of a tokenizer.json. The format `tokens` is one file in llm.c's
 * format, in which a special token starts each document; all 256 byte values are text, so documents
 * of bytes are joined. The format `megatron` is a pair NAME.bin and NAME.idx that keeps document
 * borders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/args.h"
#include "cli/data/data.h"
#include "cli/data/clips.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "data/jsonl.h"
#include "data/map.h"
#include "data/tokenize.h"

enum { PIECE = 1 << 22, MAX_THREADS = 1024 };

typedef struct {
    PlainArgs in;
    const char *out;
    TokenFormat from, format;
    const char *eot;      /* a token, "none", or NULL: chosen by find_eot */
    Tokenizer *tokenizer; /* NULL: bytes */
    BulkTokenizer tokenize;
    int32_t first, last; /* tokens before and after each document; -1: none */
    int threads;
    Writer writer;
    int64_t bytes_done; /* of all input files, for the progress line */
    ProgressLine progress;
} DataBuild;

/* Writes one document of bytes, in pieces between which the progress line is updated. */
static Err feed(DataBuild *b, Bytes text)
{
    for (size_t at = 0; at < text.bytes; at += PIECE) {
        const size_t n = text.bytes - at < PIECE ? text.bytes - at : PIECE;
        TRY(writer_text(&b->writer, (Bytes){text.at + at, n}));
        progress_at(&b->progress, b->bytes_done + (int64_t)at);
    }
    return writer_end(&b->writer);
}

static Err feed_jsonl(DataBuild *b, const char *path, Bytes data)
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

static Err build_bytes(DataBuild *b, const char *path, Bytes data)
{
    TokenFormat from = b->from;
    if (from == FORMAT_AUTO && tokens_recognise(path, data, false, &from) != OK)
        return err_fail(ERR_CONFIG,
                        "data: %s: has NUL bytes, so it may not be text; `--from text` takes its "
                        "bytes as they are",
                        path);
    if (from == FORMAT_TOKENS)
        return err_fail(ERR_CONFIG, "data: %s: is a token file already; train on it as it is",
                        path);
    if (!b->tokenizer) return from == FORMAT_JSONL ? feed_jsonl(b, path, data) : feed(b, data);
    return from == FORMAT_JSONL ? tokenize_jsonl(&b->tokenize, path, data)
                                : tokenize_text(&b->tokenize, data);
}

static Err build_file(DataBuild *b, const char *path)
{
    Bytes data;
    TRY(map_file(path, &data));
    Err err = build_bytes(b, path, data);
    if (map_check() != OK) err = ERR_IO;
    if (!b->tokenizer) b->bytes_done += (int64_t)data.bytes;
    unmap(&data);
    return err;
}

static Err total_bytes(const PlainArgs *in, int64_t *out)
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

static void on_progress(void *who, int64_t bytes)
{
    DataBuild *b = who;
    b->bytes_done += bytes;
    progress_at(&b->progress, b->bytes_done);
}

static Err build_files(DataBuild *b)
{
    for (int i = 0; i < b->in.n; i++) TRY(build_file(b, b->in.at[i]));
    return OK;
}

static Err build_tokenized(DataBuild *b)
{
    TRY(tokenize_open(&b->tokenize, &(TokenizeSettings){.of = b->tokenizer,
                                                        .writer = &b->writer,
                                                        .threads = b->threads,
                                                        .first = b->first,
                                                        .last = b->last,
                                                        .progress = on_progress,
                                                        .context = b}));
    const Err err = build_files(b);
    tokenize_close(&b->tokenize);
    return err;
}

static Err build_all(DataBuild *b)
{
    int64_t total;
    TRY(total_bytes(&b->in, &total));
    TRY(writer_open_ids(&b->writer, b->out, b->format,
                        b->tokenizer ? b->tokenizer->n_ids : BYTE_VOCAB));
    b->progress = progress_begin("building", b->out, total);
    if (b->tokenizer) { /* the header stores the token that starts a document */
        const bool template = b->first < 0 && b->tokenizer->n_before > 0;
        const int32_t start = template ? b->tokenizer->before[0] : b->first;
        b->writer.start = start < 0 ? -1 : start + 1;
    }
    Err err = b->tokenizer ? build_tokenized(b) : build_files(b);
    progress_end(&b->progress);
    if (err == OK) err = writer_finish(&b->writer);
    writer_close(&b->writer);
    return err;
}

/* Finds the token between documents: --eot, else the first of the usual names in the vocabulary. */
static Err find_eot(const DataBuild *b, int32_t *out)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    *out = -1;
    if (b->eot && strcmp(b->eot, "none") == 0) return OK;
    if (b->eot && (*out = tokenizer_id(b->tokenizer, b->eot)) < 0)
        return err_fail(ERR_CONFIG, "data build: --eot %.80s: not a token of %s", b->eot,
                        b->tokenizer->path);
    for (int i = 0; i < 3 && *out < 0; i++) *out = tokenizer_id(b->tokenizer, usual[i]);
    if (*out >= 0) return OK;
    return err_fail(ERR_CONFIG,
                    "data build: %s has none of <|endoftext|>, <|end_of_text|> and </s> to put "
                    "between documents; give a token with --eot, or --eot none",
                    b->tokenizer->path);
}

/* Puts the token before each document as in llm.c, or after it as in Megatron, unless the template
 * of the tokenizer adds a token there already. */
static Err place_eot(DataBuild *b)
{
    const Tokenizer *t = b->tokenizer;
    const bool pair = b->format == FORMAT_MEGATRON;
    int32_t eot;
    b->first = b->last = -1;
    if (!b->eot && (pair ? t->n_after : t->n_before) > 0) return OK;
    TRY(find_eot(b, &eot));
    *(pair ? &b->last : &b->first) = eot;
    return OK;
}

static Err read_threads(const char *text, int *out)
{
    char *end = NULL;
    const long n = text ? strtol(text, &end, 10) : cores_usable();
    if ((text && (end == text || *end)) || n < 1 || n > MAX_THREADS)
        return err_fail(ERR_CONFIG, "data build: --threads %.40s: must be 1 to %d", text,
                        MAX_THREADS);
    *out = (int)n;
    return OK;
}

static Err read_tokenizer(DataBuild *b, const char *path, const char *threads, Arena *a)
{
    TRY(read_threads(threads, &b->threads));
    if (strcmp(path, "bytes") == 0) {
        if (!b->eot) return OK;
        return err_fail(
            ERR_CONFIG,
            "data build: --eot %.80s: the vocabulary of bytes has no token for document "
            "borders; give a --tokenizer, or use --format megatron",
            b->eot);
    }
    TRY(tokenizer_load(path, a, &b->tokenizer));
    return place_eot(b);
}

/* Accepts data.tokenizer=FILE, the key of a run file, in place of --tokenizer. */
static void take_key(PlainArgs *in, const char **tokenizer)
{
    static const char key[] = "data.tokenizer=";
    int n = 0;
    for (int i = 0; i < in->n; i++) {
        if (strncmp(in->at[i], key, sizeof key - 1) == 0)
            *tokenizer = in->at[i] + sizeof key - 1;
        else
            in->at[n++] = in->at[i];
    }
    in->n = n;
}

static Err read_request(int argc, char **argv, Arena *a, DataBuild *b, ClipBuild *clips)
{
    const char *from = NULL, *format = NULL, *tokenizer = NULL, *threads = NULL;
    const Flag flags[] = {
        {"-o", &b->out, NULL},
        {"--format", &format, NULL},
        {"--from", &from, NULL},
        {"--tokenizer", &tokenizer, NULL},
        {"--threads", &threads, NULL},
        {"--eot", &b->eot, NULL},
        {"--moving-shapes", &clips->moving, NULL},
        {"--frames", &clips->frames, NULL},
        {"--size", &clips->size, NULL},
        {"--seed", &clips->seed, NULL},
    };
    TRY(args_plain(argc, argv, flags, 10, a, &b->in));
    clips->in = b->in.at;
    clips->n = b->in.n;
    clips->out = b->out;
    clips->of_text = format      ? "--format"
                     : from      ? "--from"
                     : tokenizer ? "--tokenizer"
                     : threads   ? "--threads"
                     : b->eot    ? "--eot"
                                 : NULL;
    if (clip_build_is(clips)) return OK;
    if (!from) from = "auto";
    if (!format) format = "tokens";
    if (!tokenizer) tokenizer = "bytes";
    if (clips->frames || clips->size || clips->seed)
        return err_fail(ERR_CONFIG, "data build: %s is for clips: .npy and .safetensors",
                        clips->frames ? "--frames"
                        : clips->size ? "--size"
                                      : "--seed");
    take_key(&b->in, &tokenizer);
    TRY(token_format_named(format, &b->format));
    TRY(token_format_named(from, &b->from));
    if (b->in.n == 0) return err_fail(ERR_CONFIG, "data build: no input; give text or JSONL files");
    if (!b->out) return err_fail(ERR_CONFIG, "data build: no output; give it as -o corpus.bin");
    if (b->from > FORMAT_JSONL)
        return err_fail(ERR_CONFIG, "data build: --from %s: must be auto, text or jsonl", from);
    return read_tokenizer(b, tokenizer, threads, a);
}

/* Prints "each document starts with <|endoftext|> (50256)". */
static void print_borders(const DataBuild *b)
{
    const int32_t first = b->writer.start - 1;
    const int32_t id = b->format == FORMAT_MEGATRON ? b->last : first;
    const Bytes token = tokenizer_bytes(b->tokenizer, id);
    if (id >= 0)
        printf("  each document %s with %.*s (%ld)\n",
               b->format == FORMAT_MEGATRON ? "ends" : "starts", (int)token.bytes,
               (const char *)token.at, (long)id);
    if (b->tokenize.replaced > 0)
        printf("  not UTF-8 in %lld place%s: replaced by U+FFFD\n", (long long)b->tokenize.replaced,
               b->tokenize.replaced == 1 ? "" : "s");
}

static void print_summary(const DataBuild *b)
{
    char tokens[COUNT_BYTES], documents[COUNT_BYTES];
    const int64_t n = b->writer.n_documents;
    const bool pair = b->format == FORMAT_MEGATRON;
    const Tokens file = {
        .format = b->format, .width = b->writer.width, .is_signed = pair && b->writer.width == 4};
    printf("%s: %s tokens in %s document%s, %s\n", b->out,
           grouped_digits(b->writer.n_tokens, tokens), grouped_digits(n, documents),
           n == 1 ? "" : "s", tokens_describe(&file));
    if (b->tokenizer) print_borders(b);
    if (!pair && n > 1 && b->writer.start <= 0)
        puts("  the documents are joined: bytes have no border token; --format megatron keeps "
             "borders");
}

int data_build(int argc, char **argv)
{
    Arena arena;
    DataBuild b = {0};
    ClipBuild clips = {0};
    if (arena_open(&arena, "data", ARENA_PLENTY) != OK) return cli_fail(ERR_NOMEM);
    Err err = read_request(argc, argv, &arena, &b, &clips);
    const bool text = err == OK && !clip_build_is(&clips);
    if (err == OK) err = text ? build_all(&b) : clip_build(&clips, &arena);
    if (err == OK && text) print_summary(&b);
    if (b.tokenizer) tokenizer_close(b.tokenizer);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
