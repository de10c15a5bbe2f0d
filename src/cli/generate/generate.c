/* generate.c -- `sheaf generate`: continues prompts with a model.
 *
 *     sheaf generate runs/demo -p "int main(" -n 100 --temperature 0.8
 *     sheaf generate Llama-3.2-1B --prompts questions.txt --batch 16 mesh.tp=2 --json
 *
 * Generated text is streamed to standard output; everything else goes to standard error. */
#define _DEFAULT_SOURCE
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/generate/generate.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "data/unicode.h"

enum { PREFILL_ROWS = 256, BATCH = 8, MAX_TOKENS = 200 };

/* The values of the flags, not converted yet. */
typedef struct {
    const char *prompt, *prompts, *tokens, *temperature, *top_k, *top_p, *penalty, *seed, *stop;
    const char *batch, *tokenizer;
    bool ids, json, no_cache, ignore_eos;
    ClipFlags clip;
} GenerateFlags;

static Err read_int(const char *flag, const char *text, int64_t low, int64_t *out)
{
    char *end;
    if (!text) return OK;
    const long long x = strtoll(text, &end, 10);
    if (!*text || *end || x < low || x > INT32_MAX)
        return err_fail(ERR_CONFIG, "%s %.40s: must be a whole number, %lld to %d", flag, text,
                        (long long)low, INT32_MAX);
    *out = x;
    return OK;
}

static Err read_number(const char *flag, const char *text, double *out)
{
    char *end;
    if (!text) return OK;
    *out = strtod(text, &end);
    if (*text && !*end) return OK;
    return err_fail(ERR_CONFIG, "%s %.40s: must be a number", flag, text);
}

/* Collects every --stop. args_split keeps only the last value of a flag, so argv is read again. */
static Err read_stops(GenerateRequest *g, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const bool joined = strncmp(argv[i], "--stop=", 7) == 0;
        const char *text = joined ? argv[i] + 7 : argv[i + 1];
        if (!joined && (strcmp(argv[i], "--stop") != 0 || i + 1 == argc)) continue;
        if (!*text)
            return err_fail(ERR_CONFIG, "--stop: an empty text would stop before the first token");
        if (g->n_stops == MAX_STOPS)
            return err_fail(ERR_CONFIG, "--stop: at most %d texts", MAX_STOPS);
        g->stop[g->n_stops++] = text;
        i += !joined;
    }
    return OK;
}

/* Flags that would have no effect are refused: greedy decoding draws no random numbers. */
static Err read_settings(GenerateRequest *g, const GenerateFlags *f)
{
    int64_t seed = 1;
    g->sample = (SamplerSettings){.temperature = 0, .top_p = 1, .repetition = 1};
    g->max_tokens = MAX_TOKENS;
    TRY(read_int("-n", f->tokens, 1, &g->max_tokens));
    TRY(read_number("--temperature", f->temperature, &g->sample.temperature));
    TRY(read_int("--top-k", f->top_k, 0, &g->sample.top_k));
    TRY(read_number("--top-p", f->top_p, &g->sample.top_p));
    TRY(read_number("--repetition-penalty", f->penalty, &g->sample.repetition));
    TRY(read_int("--seed", f->seed, 0, &seed));
    g->sample.seed = (uint64_t)seed;
    if (g->sample.temperature == 0 && (f->top_k || f->top_p || f->seed))
        return err_fail(ERR_CONFIG,
                        "%s: has no effect at temperature 0, which takes the likeliest token; set "
                        "--temperature above 0",
                        f->top_k   ? "--top-k"
                        : f->top_p ? "--top-p"
                                   : "--seed");
    if (f->ids && g->n_stops && g->infer.no_text)
        return err_fail(ERR_CONFIG, "--stop: needs text, and the model has no tokenizer; give one "
                                    "with --tokenizer FILE");
    g->ids = f->ids;
    g->json = f->json;
    return OK;
}

/* Chooses the shape of the session. The context is as long as the request needs, limited by the
 * positions of the model; a pass has rows for a prefill or for one token of each sequence. */
static Err choose_shape(GenerateRequest *g, const GenerateFlags *f)
{
    const Prompts *p = &g->prompts;
    const int64_t most = g->infer.source.model.max_positions;
    int64_t all = 0, batch = p->n < BATCH ? p->n : BATCH;
    TRY(read_int("--batch", f->batch, 1, &batch));
    for (int64_t i = 0; i < p->n; i++) {
        all += p->prompt[i].n;
        if (p->prompt[i].n > most)
            return err_fail(
                ERR_CONFIG, "prompt %lld has %lld tokens; the model of %s has %lld positions",
                (long long)i + 1, (long long)p->prompt[i].n, g->infer.source.dir, (long long)most);
    }
    if (batch > p->n) batch = p->n;
    const int64_t wanted = p->longest + g->max_tokens - 1; /* the last token is no input */
    const int64_t context = wanted < most ? wanted : most;
    int64_t rows = all < PREFILL_ROWS ? all : PREFILL_ROWS;
    if (rows < batch) rows = batch;
    /* No more tokens than the context allows; one more, so that the reported end is the context. */
    if (g->max_tokens > context + 1) g->max_tokens = context + 1;
    g->shape = (SessionShape){rows, batch, batch, context, true};
    if (f->no_cache) g->shape = (SessionShape){batch * context, batch, batch, context, false};
    return OK;
}

/* Ranks of cp hold positions of the KV cache with all of their heads (compile/session.c). */
static Err check_heads(const Config *c)
{
    if (c->mesh_cp_heads <= 1) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: mesh.cp_heads=%lld: generate does not shard heads over cp, whose ranks "
                    "share the KV cache; leave it out",
                    c->origin[KEY_mesh_cp_heads], (long long)c->mesh_cp_heads);
}

/* Refuses flags that are for the other kind of model. */
static Err check_kind(const GenerateRequest *g, const GenerateFlags *f)
{
    const struct {
        const char *name;
        bool given, clips;
    } flag[] = {{"-p", f->prompt, false},
                {"--prompts", f->prompts, false},
                {"-n", f->tokens, false},
                {"--temperature", f->temperature, false},
                {"--top-k", f->top_k, false},
                {"--top-p", f->top_p, false},
                {"--repetition-penalty", f->penalty, false},
                {"--stop", f->stop, false},
                {"--tokenizer", f->tokenizer, false},
                {"--ids", f->ids, false},
                {"--json", f->json, false},
                {"--no-cache", f->no_cache, false},
                {"--ignore-eos", f->ignore_eos, false},
                {"-o", f->clip.out, true},
                {"--clips", f->clip.clips, true},
                {"--steps", f->clip.steps, true},
                {"--texts", f->clip.texts, true}};
    const bool clips = g->infer.source.model.frames > 0;
    for (size_t i = 0; i < sizeof flag / sizeof *flag; i++)
        if (flag[i].given && flag[i].clips != clips)
            return err_fail(ERR_CONFIG,
                            "%s: is for models of %s, and %s is one of %s; leave it out",
                            flag[i].name, clips ? "text" : "clips", g->infer.source.dir,
                            clips ? "clips" : "text");
    return OK;
}

static Err prepare(GenerateRequest *g, int argc, char **argv)
{
    GenerateFlags f = {0};
    Args args;
    const Flag flags[] = {{"-p", &f.prompt, NULL},
                          {"--prompts", &f.prompts, NULL},
                          {"-n", &f.tokens, NULL},
                          {"--temperature", &f.temperature, NULL},
                          {"--top-k", &f.top_k, NULL},
                          {"--top-p", &f.top_p, NULL},
                          {"--repetition-penalty", &f.penalty, NULL},
                          {"--seed", &f.seed, NULL},
                          {"--stop", &f.stop, NULL},
                          {"--batch", &f.batch, NULL},
                          {"--tokenizer", &f.tokenizer, NULL},
                          {"--ids", NULL, &f.ids},
                          {"--json", NULL, &f.json},
                          {"--no-cache", NULL, &f.no_cache},
                          {"--ignore-eos", NULL, &f.ignore_eos},
                          {"-o", &f.clip.out, NULL},
                          {"--clips", &f.clip.clips, NULL},
                          {"--steps", &f.clip.steps, NULL},
                          {"--texts", &f.clip.texts, NULL}};
    TRY(args_split(argc, argv, flags, sizeof flags / sizeof *flags, &g->infer.arena, &args));
    TRY(infer_open(&g->infer, &args, f.tokenizer));
    TRY(check_kind(g, &f));
    if (g->infer.source.model.frames) return generate_clips_prepare(g, &f.clip, f.batch, f.seed);
    TRY(check_heads(&g->infer.config));
    TRY(read_stops(g, argc, argv));
    TRY(read_settings(g, &f));
    const PromptArgs words = {f.prompt, f.prompts, f.ids};
    TRY(prompts_read(&g->infer, &words, &g->infer.arena, &g->prompts));
    if (f.ignore_eos) g->infer.n_end = 0;
    return choose_shape(g, &f);
}

/* JSON strings must be valid UTF-8. */
static json_t *valid_text(const Bytes text, Arena *a)
{
    Bytes valid;
    int64_t replaced = 0;
    if (utf8_repair(text, a, &valid, &replaced) != OK) return json_null();
    return json_stringn((const char *)valid.at, valid.bytes);
}

/* `text` ends before a stop string; `ids` has every generated token. */
static json_t *output_json(const GenerateRequest *g, int64_t i, Arena *a)
{
    const Completion *c = &g->stream->completion[i];
    const Bytes text = {(const unsigned char *)c->text, c->n};
    json_t *o = json_object(), *ids = json_array();
    json_object_set_new(o, "prompt", valid_text(g->prompts.text[i], a));
    json_object_set_new(o, "prompt_tokens", json_integer(g->prompts.prompt[i].n));
    json_object_set_new(o, "text", valid_text(text, a));
    for (int64_t k = 0; k < c->n_ids; k++) json_array_append_new(ids, json_integer(c->id[k]));
    json_object_set_new(o, "ids", ids);
    json_object_set_new(o, "end", json_string(c->ended ? generate_end_name(c->why) : "interrupt"));
    return o;
}

static double rate(int64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

Err generate_json(const GenerateRequest *g)
{
    const GenerateResult *r = &g->result;
    Arena a;
    TRY(arena_open(&a, "json", ARENA_PLENTY));
    json_t *o = json_object(), *list = json_array();
    json_object_set_new(o, "version", json_string(SHEAF_VERSION));
    json_object_set_new(o, "model", json_string(g->infer.source.dir));
    for (int64_t i = 0; i < g->prompts.n; i++) json_array_append_new(list, output_json(g, i, &a));
    json_object_set_new(o, "outputs", list);
    json_object_set_new(o, "prefill_tokens", json_integer(r->prefill_tokens));
    json_object_set_new(o, "prefill_tokens_per_s",
                        json_real(rate(r->prefill_tokens, r->prefill_s)));
    json_object_set_new(o, "decode_tokens", json_integer(r->decode_tokens));
    json_object_set_new(o, "decode_tokens_per_s", json_real(rate(r->decode_tokens, r->decode_s)));
    json_object_set_new(o, "memory_bytes", json_integer(atomic_load(&g->infer.bytes)));
    json_object_set_new(o, "cache_bytes", json_integer(atomic_load(&g->cache_bytes)));
    json_object_set_new(o, "rank_cache_bytes", json_integer(atomic_load(&g->rank_cache_bytes)));
    json_dumpf(o, stdout, JSON_INDENT(1));
    fputc('\n', stdout);
    json_decref(o);
    arena_close(&a);
    return OK;
}

static void print_summary(const GenerateRequest *g)
{
    char first[24], second[24];
    const GenerateResult *r = &g->result;
    fprintf(stderr, "%s: prefill of %lld tokens at %s tok/s, decode of %lld at %s tok/s\n",
            r->stopped ? "stopped" : "done", (long long)r->prefill_tokens,
            text_count(rate(r->prefill_tokens, r->prefill_s), first), (long long)r->decode_tokens,
            text_count(rate(r->decode_tokens, r->decode_s), second));
}

static int generate(int argc, char **argv, FlightRecorder *recorder)
{
    static GenerateRequest g; /* large */
    g = (GenerateRequest){0};
    Err err = infer_begin(&g.infer, "generate", recorder);
    if (err == OK) {
        g.infer.prepared = prepare(&g, argc, argv);
        err = infer_run(&g.infer, generate_rank, &g);
    }
    const bool stopped = g.result.stopped || g.clip.result.stopped;
    const int status = err == OK ? stopped ? 130 : 0 : infer_fail(&g.infer, err);
    if (err == OK && g.infer.launch.rank == 0) {
        if (g.clip.n)
            generate_clips_summary(&g);
        else
            print_summary(&g);
    }
    infer_close(&g.infer);
    return status;
}

int verb_generate(int argc, char **argv) { return worker_run(generate, argc, argv, NULL, NULL); }
