/* eval.c -- `sheaf eval`: perplexity on a text, or accuracy on multiple-choice tasks.
 *
 *     sheaf eval runs/demo --text book.txt [--seq-len 256] [--stride 128]
 *     sheaf eval Llama-3.2-1B --tokens valid.bin
 *     sheaf eval Llama-3.2-1B --tasks hellaswag.jsonl --json */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval/eval.h"
#include "cli/verbs.h"
#include "cli/worker.h"

enum { SEQ_LEN = 1024, PASS_ROWS = 4096, MAX_MICROS = 16 };
static const size_t max_text_bytes = (size_t)1 << 31;

typedef struct {
    const char *text, *tokens, *tasks, *seq_len, *stride, *limit, *tokenizer;
} EvalFlags;

static Err read_count(const char *flag, const char *text, int64_t *out)
{
    char *end;
    if (!text) return OK;
    const long long x = strtoll(text, &end, 10);
    if (!*text || *end || x < 1)
        return err_fail(ERR_CONFIG, "%s %.40s: must be a whole number, 1 or more", flag, text);
    *out = x;
    return OK;
}

static Err need_text(const EvalRequest *e)
{
    if (!e->infer.no_text) return OK;
    return err_fail(
        ERR_CONFIG,
        "%s has no tokenizer.json; give one with --tokenizer FILE (bytes: one token per "
        "byte), or give a token file with --tokens",
        e->infer.source.dir);
}

/* ---- perplexity ---- */

static Err read_text(EvalRequest *e, const char *path)
{
    const char *text;
    size_t bytes;
    EncodedText ids;
    TRY(need_text(e));
    TRY(text_read_file(path, max_text_bytes, &e->infer.arena, &text, &bytes));
    TRY(infer_encode(&e->infer, path, (Bytes){(const unsigned char *)text, bytes}, &e->infer.arena,
                     &ids));
    e->token = ids.id;
    e->windows.n_tokens = ids.n;
    return OK;
}

/* Copies ids to int32 and checks them against the vocabulary; the file is closed afterwards. */
static Err copy_tokens(EvalRequest *e, const Tokens *t, int64_t limit)
{
    int32_t *id;
    const int64_t n = t->n_tokens < limit ? t->n_tokens : limit;
    TRY(ARENA_NEW(&e->infer.arena, n, &id));
    for (int64_t i = 0; i < n; i++) {
        const int64_t x = tokens_at(t, i);
        if (x < 0 || x >= e->infer.source.model.vocab)
            return tokens_bad_id(t, i, e->infer.source.model.vocab);
        id[i] = (int32_t)x;
    }
    e->token = id;
    e->windows.n_tokens = n;
    return OK;
}

static Err read_tokens(EvalRequest *e, const char *path, int64_t limit)
{
    Tokens t;
    TRY(tokens_open(path, FORMAT_AUTO, &e->infer.arena, &t));
    const Err err = copy_tokens(e, &t, limit);
    tokens_close(&t);
    return err;
}

/* Returns the bytes of the scored text: all tokens but the first; special tokens have no text. */
static int64_t count_bytes(const EvalRequest *e)
{
    int64_t bytes = 0;
    const Tokenizer *t = e->infer.tokenizer;
    for (int64_t i = 1; i < e->windows.n_tokens && !e->infer.no_text; i++)
        if (!t || !tokenizer_special(t, e->token[i]))
            bytes += (int64_t)decode_token(t, e->token[i]).bytes;
    return bytes;
}

/* A tokenizer given by --tokenizer may have more ids than the model. */
static Err check_vocabulary(const EvalRequest *e)
{
    for (int64_t i = 0; i < e->windows.n_tokens; i++)
        if (e->token[i] < 0 || e->token[i] >= e->infer.source.model.vocab)
            return err_fail(ERR_CONFIG, "%s: token %lld is %d; the model has tokens 0 to %lld",
                            e->what, (long long)i, e->token[i],
                            (long long)e->infer.source.model.vocab - 1);
    return OK;
}

static Err prepare_text(EvalRequest *e, const EvalFlags *f)
{
    Windows *w = &e->windows;
    int64_t limit = INT64_MAX;
    TRY(read_count("--limit", f->limit, &limit));
    if (f->text)
        TRY(read_text(e, f->text));
    else
        TRY(read_tokens(e, f->tokens, limit));
    if (w->n_tokens > limit) w->n_tokens = limit;
    TRY(check_vocabulary(e));
    if (w->n_tokens < 2)
        return err_fail(ERR_CONFIG, "%s: %lld tokens; the first is not scored, so 2 are the least",
                        e->what, (long long)w->n_tokens);
    w->stride = w->seq_len;
    TRY(read_count("--stride", f->stride, &w->stride));
    if (w->stride > w->seq_len)
        return err_fail(ERR_CONFIG,
                        "--stride %lld: windows of %lld tokens would skip some; the most is %lld",
                        (long long)w->stride, (long long)w->seq_len, (long long)w->seq_len);
    e->n_sequences = windows_count(w);
    e->text_bytes = count_bytes(e);
    return OK;
}

/* ---- multiple choice ---- */

/* Finds the token to put before a choice without context: an end-of-text token, else a line
 * break. */
static Err token_before(InferContext *ctx, int32_t *out)
{
    EncodedText line;
    *out = encode_end_of_text(ctx->tokenizer);
    if (*out < 0 && ctx->n_end > 0 && ctx->end[0] < ctx->source.model.vocab) *out = ctx->end[0];
    if (*out >= 0) return OK;
    TRY(encode_text(ctx->tokenizer, (Bytes){(const unsigned char *)"\n", 1}, false, &ctx->arena,
                    &line));
    *out = line.id[0];
    return OK;
}

/* Encodes context and choice as one text. Tokens after those of the context alone belong to the
 * choice, as in lm-evaluation-harness. */
static Err encode_choice(EvalRequest *e, const ChoiceTask *t, int i, ScoreSequence *out)
{
    const Tokenizer *by = e->infer.tokenizer;
    const Bytes c = t->context, x = t->choice[i];
    Arena *a = &e->infer.arena;
    EncodedText all, before;
    char *text;
    TRY(ARENA_NEW(a, c.bytes + x.bytes + 1, &text));
    if (c.bytes) memcpy(text, c.at, c.bytes);
    memcpy(text + c.bytes, x.at, x.bytes);
    TRY(encode_text(by, (Bytes){(const unsigned char *)text, c.bytes + x.bytes}, true, a, &all));
    TRY(encode_text(by, c, true, a, &before));
    all.n -=
        by ? by->n_after : 0; /* without the end token of the template: a choice ends no text */
    before.n -= by ? by->n_after : 0;
    int64_t from = before.n < all.n ? before.n : all.n - 1;
    if (from < 1) { /* the first token cannot be scored without one before it */
        int32_t *with;
        TRY(ARENA_NEW(a, all.n + 1, &with));
        TRY(token_before(&e->infer, &with[0]));
        memcpy(with + 1, all.id, (size_t)all.n * sizeof *with);
        all = (EncodedText){.id = with, .n = all.n + 1};
        from = 1;
    }
    *out = (ScoreSequence){all.id, all.n, from};
    return OK;
}

/* Drops tokens from the start of a sequence that is longer than the window. */
static void shorten(EvalRequest *e, ScoreSequence *q)
{
    const int64_t over = q->n - 1 - e->windows.seq_len;
    if (over <= 0) return;
    q->token += over;
    q->n -= over;
    q->from = q->from > over ? q->from - over : 1;
    e->n_cut++;
}

static Err prepare_tasks(EvalRequest *e, const EvalFlags *f)
{
    int64_t k = 0, longest = 1;
    TRY(need_text(e));
    TRY(tasks_read(f->tasks, &e->infer.arena, &e->choices));
    e->n_sequences = e->choices.n_choices;
    TRY(ARENA_NEW(&e->infer.arena, e->n_sequences, &e->sequence));
    for (int64_t t = 0; t < e->choices.n; t++)
        for (int i = 0; i < e->choices.task[t].n; i++, k++) {
            TRY(encode_choice(e, &e->choices.task[t], i, &e->sequence[k]));
            if (e->sequence[k].n - 1 > longest) longest = e->sequence[k].n - 1;
        }
    e->windows.seq_len = e->infer.source.model.max_positions;
    TRY(read_count("--seq-len", f->seq_len, &e->windows.seq_len));
    if (longest < e->windows.seq_len) e->windows.seq_len = longest;
    for (k = 0; k < e->n_sequences; k++) shorten(e, &e->sequence[k]);
    return OK;
}

/* ---- both ---- */

static Err check_flags(const EvalFlags *f)
{
    const int given = !!f->text + !!f->tokens + !!f->tasks;
    if (given != 1)
        return err_fail(ERR_CONFIG,
                        "eval: %s; give one of --text FILE, --tokens FILE and --tasks FILE.jsonl",
                        given ? "several files" : "nothing to measure on");
    if (f->tasks && (f->stride || f->limit))
        return err_fail(ERR_CONFIG, "eval: %s has no effect on tasks; remove it",
                        f->stride ? "--stride" : "--limit");
    return OK;
}

static Err prepare(EvalRequest *e, int argc, char **argv)
{
    EvalFlags f = {0};
    Args args;
    const Flag flags[] = {{"--text", &f.text, NULL},           {"--tokens", &f.tokens, NULL},
                          {"--tasks", &f.tasks, NULL},         {"--seq-len", &f.seq_len, NULL},
                          {"--stride", &f.stride, NULL},       {"--limit", &f.limit, NULL},
                          {"--tokenizer", &f.tokenizer, NULL}, {"--json", NULL, &e->json}};
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, &e->infer.arena, &args));
    TRY(check_flags(&f));
    TRY(infer_open(&e->infer, &args, f.tokenizer));
    const Source *s = &e->infer.source;
    if (s->model.frames)
        return err_fail(
            ERR_CONFIG,
            "eval: the model of %s is one of clips, and eval measures text; train "
            "with data.valid=CLIPS.npy run.valid_every=N for the loss of held-out clips",
            s->dir);
    const int64_t most = s->model.max_positions;
    e->tasks = f.tasks != NULL;
    e->what = f.text ? f.text : f.tokens ? f.tokens : f.tasks;
    const int64_t trained = s->kind == SOURCE_HF ? 0 : s->manifest.scalars.seq_len;
    e->windows.seq_len = trained ? trained : most < SEQ_LEN ? most : SEQ_LEN;
    TRY(read_count("--seq-len", f.seq_len, &e->windows.seq_len));
    if (e->windows.seq_len > most)
        return err_fail(ERR_CONFIG, "--seq-len %lld: the model of %s has %lld positions",
                        (long long)e->windows.seq_len, s->dir, (long long)most);
    TRY(e->tasks ? prepare_tasks(e, &f) : prepare_text(e, &f));
    /* Micro-batches per pass: about PASS_ROWS tokens, and at least one per pipeline stage. */
    const int64_t fits = PASS_ROWS / e->windows.seq_len, stages = e->infer.config.mesh_pp;
    const int64_t micros = fits < stages ? stages : fits < 1 ? 1 : fits;
    e->micros = (int)(micros > MAX_MICROS ? MAX_MICROS : micros);
    if (e->n_sequences < e->micros) e->micros = (int)e->n_sequences;
    return ARENA_NEW(&e->infer.arena, e->n_sequences, &e->loss);
}

static int eval(int argc, char **argv, FlightRecorder *recorder)
{
    static EvalRequest e; /* large */
    e = (EvalRequest){0};
    Err err = infer_begin(&e.infer, "eval", recorder);
    if (err == OK) {
        e.infer.prepared = prepare(&e, argc, argv);
        err = infer_run(&e.infer, eval_rank, &e);
    }
    const bool stopped = e.infer.stop && *e.infer.stop;
    const int status = err == OK ? 0 : stopped ? 130 : infer_fail(&e.infer, err);
    if (err == OK && e.infer.launch.rank == 0)
        e.tasks ? eval_report_tasks(&e) : eval_report_text(&e);
    infer_close(&e.infer);
    return status;
}

int verb_eval(int argc, char **argv) { return worker_run(eval, argc, argv, NULL, NULL); }
