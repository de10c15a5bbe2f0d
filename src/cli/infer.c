/* infer.c -- a model opened for inference. */
#include "cli/infer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/memory_limits.h"
#include "cli/config/print.h"
#include "cli/interrupt.h"
#include "cli/config/keys.h"
#include "cli/machine.h"
#include "cli/verbs.h"
#include "state/load.h"

enum { IN_FLIGHT = 64, RECORDS = 1024, MAX_JSON_BYTES = 1 << 22 };

Err infer_begin(InferContext *ctx, const char *verb, FlightRecorder *recorder)
{
    *ctx = (InferContext){.verb = verb, .recorder = recorder};
    TRY(arena_open(&ctx->arena, verb, ARENA_PLENTY));
    TRY(launch_open(&ctx->launch, recorder));
    ctx->stop = interrupt_watch();
    return OK;
}

/* Refuses keys that the verb does not read: they would silently have no effect. */
static Err check_keys(const InferContext *ctx)
{
    const Config *c = &ctx->config;
    const char *const run[] = {"run.ranks",    "run.threads",   "run.pin",           "run.device",
                               "run.comm",     "run.timeout_s", "precision.compute", "model.name",
                               "model.ignore", "parallel.split"};
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        bool known = strcmp(key->section, "mesh") == 0;
        for (size_t k = 0; k < sizeof run / sizeof *run; k++)
            known = known || strcmp(key->path, run[k]) == 0;
        if (known || strcmp(c->origin[i], "command line") != 0) continue;
        return err_fail(
            ERR_CONFIG,
            "command line: %s: %s does not read it; it reads mesh.*, run.ranks, "
            "run.threads, run.pin, run.device, run.comm, run.timeout_s, precision.compute, "
            "parallel.split and model.ignore",
            key->path, ctx->verb);
    }
    if (c->precision_compute == COMPUTE_FP8 &&
        strcmp(c->origin[KEY_precision_compute], "command line") == 0)
        return err_fail(ERR_CONFIG,
                        "command line: precision.compute=fp8: %s has no GEMMs in FP8; set "
                        "precision.compute=bf16, or leave it out",
                        ctx->verb);
    if (c->model_ignore.n > 0 && ctx->source.kind != SOURCE_HF)
        return err_fail(ERR_CONFIG,
                        "command line: model.ignore=%.80s: %s is a checkpoint, whose model has no "
                        "unknown keys; remove it",
                        c->model_ignore.text, ctx->source.dir);
    if (c->n_model_fields > 0)
        return err_fail(ERR_CONFIG, "command line: model.%s: the model is that of %s",
                        c->model_fields[0].key, ctx->source.dir);
    return OK;
}

/* Loads the configuration: the given keys, the model's folder as model.name, and the element type
 * of the checkpoint if none is given, bf16 for FP8. */
static Err read_keys(InferContext *ctx, const Args *args)
{
    Args with = {.n_set = args->n_set};
    char *name, *type;
    const size_t room = strlen(ctx->source.dir) + 32;
    bool typed = false;
    TRY(ARENA_NEW(&ctx->arena, args->n_set + 2, &with.set));
    TRY(ARENA_NEW(&ctx->arena, room, &name));
    TRY(ARENA_NEW(&ctx->arena, 64, &type));
    for (int i = 0; i < args->n_set; i++) {
        with.set[i] = args->set[i];
        typed = typed || strncmp(args->set[i], "precision.compute=", 18) == 0;
        if (strncmp(args->set[i], "model.name=", 11) == 0)
            return err_fail(ERR_CONFIG, "command line: model.name: the model is that of %s",
                            ctx->source.dir);
    }
    snprintf(name, room, "model.name=%s", ctx->source.dir);
    const char *trained =
        ctx->source.kind == SOURCE_HF ? "f32" : ctx->source.manifest.scalars.dtype;
    snprintf(type, 64, "precision.compute=%.30s", strcmp(trained, "fp8") == 0 ? "bf16" : trained);
    with.set[with.n_set++] = name;
    if (!typed) with.set[with.n_set++] = type;
    TRY(launch_config(&ctx->launch, &with, &ctx->arena, &ctx->config));
    return check_keys(ctx);
}

/* True if data.tokenizer=bytes of a run means bytes. Earlier versions, which had no model.ignore,
 * wrote bytes for token files too; a vocabulary other than 256 was then not that of bytes. */
static bool means_bytes(const Source *s, const char *tokenizer)
{
    if (!tokenizer || strcmp(tokenizer, "bytes") != 0) return false;
    return s->model.vocab == BYTE_VOCAB ||
           config_yaml_value(s->manifest.scalars.config, "model", "ignore");
}

/* Finds the tokenizer: --tokenizer, else data.tokenizer of the training run, else tokenizer.json
 * next to the weights or in RUN/hf. *out is NULL if there is none. */
static Err find_tokenizer(InferContext *ctx, const char *given, const char **out)
{
    const Source *s = &ctx->source;
    char path[1200];
    struct stat st;
    const char *trained = NULL;
    *out = given;
    if (given) return OK;
    if (s->kind != SOURCE_HF)
        TRY(config_yaml_text(s->manifest.scalars.config, "data", "tokenizer", &ctx->arena,
                             &trained));
    const bool named = trained && strcmp(trained, "auto") != 0 && strcmp(trained, "bytes") != 0;
    if (means_bytes(s, trained) || (named && stat(trained, &st) == 0)) {
        *out = trained;
        return OK;
    }
    snprintf(path, sizeof path, "%.1100s/tokenizer.json", s->extra_dir ? s->extra_dir : "");
    if (s->extra_dir && stat(path, &st) == 0) return arena_string(&ctx->arena, path, out);
    if (named) *out = trained; /* the file is gone; loading it says so */
    return OK;
}

/* Opens the tokenizer and checks that the model has an embedding for each of its ids. */
static Err open_tokenizer(InferContext *ctx, const char *given)
{
    const Source *s = &ctx->source;
    const char *path;
    TRY(find_tokenizer(ctx, given, &path));
    const bool bytes = path ? strcmp(path, "bytes") == 0 : s->model.vocab == BYTE_VOCAB;
    if (!path && !bytes) ctx->no_text = true;
    if (!path || bytes) return OK;
    TRY(tokenizer_load(path, &ctx->arena, &ctx->tokenizer));
    if (ctx->tokenizer->n_ids > s->model.vocab)
        return err_fail(ERR_CONFIG,
                        "%s has ids up to %lld, the model of %s has a vocabulary of %lld; give the "
                        "model's own tokenizer with --tokenizer FILE",
                        path, (long long)ctx->tokenizer->n_ids - 1, s->dir,
                        (long long)s->model.vocab);
    return OK;
}

/* Adds one end token from a JSON file. */
static Err add_end(InferContext *ctx, const char *path, const json_t *id)
{
    const json_int_t end = json_is_integer(id) ? json_integer_value(id) : -1;
    if (end < 0 || end > INT32_MAX)
        return err_fail(
            ERR_CONFIG,
            "%s: eos_token_id: must be a token, a list of tokens, or null; correct the file", path);
    if (ctx->n_end == MAX_END_TOKENS)
        return err_fail(ERR_CONFIG,
                        "%s: eos_token_id: more than %d tokens; keep those that end a text", path,
                        MAX_END_TOKENS);
    ctx->end[ctx->n_end++] = (int32_t)end;
    return OK;
}

static Err add_ends(InferContext *ctx, const char *path, const json_t *id)
{
    const json_t *one;
    size_t i;
    if (!id || json_is_null(id)) return OK;
    if (!json_is_array(id)) return add_end(ctx, path, id);
    json_array_foreach(id, i, one) TRY(add_end(ctx, path, one));
    return OK;
}

/* Reads eos_token_id of a JSON file, if the file exists and no earlier file had end tokens. */
static Err read_ends(InferContext *ctx, const char *name)
{
    char path[1200];
    struct stat st;
    const char *text;
    size_t bytes;
    json_error_t why;
    snprintf(path, sizeof path, "%.1100s/%s", ctx->source.extra_dir, name);
    if (ctx->n_end > 0 || stat(path, &st) != 0) return OK;
    TRY(text_read_file(path, MAX_JSON_BYTES, &ctx->arena, &text, &bytes));
    json_t *root = json_loadb(text, bytes, 0, &why);
    if (!root)
        return err_fail(ERR_CONFIG, "%s:%d: not JSON: %s; correct the file there", path, why.line,
                        why.text);
    const Err err = add_ends(ctx, path, json_object_get(root, "eos_token_id"));
    json_decref(root);
    return err;
}

/* Finds the end tokens: those of the model's folder, else the tokenizer's own. */
static Err find_ends(InferContext *ctx)
{
    if (ctx->source.extra_dir) TRY(read_ends(ctx, "generation_config.json"));
    if (ctx->source.extra_dir) TRY(read_ends(ctx, "config.json"));
    const int32_t end = encode_end_of_text(ctx->tokenizer);
    if (ctx->n_end == 0 && end >= 0) ctx->end[ctx->n_end++] = end;
    return OK;
}

Err infer_encode(const InferContext *ctx, const char *what, Bytes text, Arena *a, EncodedText *out)
{
    TRY(encode_text(ctx->tokenizer, text, true, a, out));
    if (out->replaced > 0 && ctx->launch.rank == 0)
        fprintf(stderr, "sheaf: %s: not UTF-8 in %lld place%s; replaced by U+FFFD\n", what,
                (long long)out->replaced, out->replaced == 1 ? "" : "s");
    return OK;
}

/* A capacity is a setting of training, not of the model: say that it does not apply. */
static Err note_capacity(const InferContext *ctx, Arena *temp)
{
    const Source *s = &ctx->source;
    const char *capacity = NULL;
    if (s->kind == SOURCE_HF || ctx->launch.rank > 0) return OK;
    TRY(config_yaml_text(s->manifest.scalars.config, "parallel", "capacity", temp, &capacity));
    if (capacity && strtod(capacity, NULL) > 0)
        fprintf(stderr,
                "sheaf: trained with parallel.capacity=%s; %s drops no choice of a router\n",
                capacity, ctx->verb);
    return OK;
}

Err infer_open(InferContext *ctx, const Args *args, const char *tokenizer)
{
    bool f64 = false;
    IgnoredKeys ignore;
    if (!args->file)
        return err_fail(
            ERR_CONFIG,
            "%s: no model; give a run folder, a checkpoint or a Hugging Face folder, as "
            "in `sheaf %s runs/NAME`",
            ctx->verb, ctx->verb);
    /* The element type and model.ignore are needed to open the source, before the other keys can be
     * read. */
    for (int i = 0; i < args->n_set; i++)
        f64 = f64 || strcmp(args->set[i], "precision.compute=f64") == 0;
    TRY(config_ignored_keys(args->set, args->n_set, &ctx->arena, &ignore));
    TRY(source_open(args->file, f64 ? F64 : F32, &ignore, &ctx->arena, &ctx->source));
    if (ctx->source.note[0] && ctx->launch.rank == 0)
        fprintf(stderr, "sheaf: %s\n", ctx->source.note);
    TRY(note_capacity(ctx, &ctx->arena));
    TRY(read_keys(ctx, args));
    TRY(open_tokenizer(ctx, tokenizer));
    TRY(find_ends(ctx));
    return machine_device(&ctx->config, &ctx->device);
}

/* With MPI a process whose setup failed must still enter the world: its ranks report the error by
 * world_agree, and the other processes do not wait for them. */
Err infer_run(InferContext *ctx, Err (*body)(WorldRank *w, void *work), void *work)
{
    const WorldSettings set = {.ranks = ctx->launch.ranks,
                               .comm_world = ctx->launch.comm_world,
                               .in_flight = IN_FLIGHT,
                               .records = RECORDS,
                               .timeout_s = ctx->config.run_timeout_s,
                               .flight_recorder = ctx->recorder,
                               .body = body,
                               .work = work};
    if (ctx->prepared != OK && !ctx->launch.comm_world) return ctx->prepared;
    TRY(launch_renumber(&ctx->launch, ctx->prepared == OK));
    return world_run(&set);
}

int infer_fail(const InferContext *ctx, Err err)
{
    const bool mine = ctx->launch.rank == 0 || (err != ERR_PEER && !ctx->agreed);
    return mine ? cli_fail(err) : err == ERR_CONFIG ? 2 : 1;
}

void infer_close(InferContext *ctx)
{
    if (ctx->tokenizer) tokenizer_close(ctx->tokenizer);
    launch_close(&ctx->launch);
    if (ctx->arena.base) arena_close(&ctx->arena);
}

Err infer_job(InferContext *ctx, const WorldRank *w, JobSettings *out)
{
    Config c = ctx->config;
    c.parallel_prepack = false; /* inference has no micro-batches to reuse panels in */
    TRY(config_job(&c, &ctx->source.model, out));
    out->parallel.rank = w->rank;
    return OK;
}

Err infer_team(InferContext *ctx, const WorldRank *w, Team **out)
{
    return launch_team(&ctx->launch, w->place, out);
}

/* The first rank of each process compares the sum of its ranks with the memory of the machine. */
Err infer_start(InferContext *ctx, WorldRank *w, const char *way_out)
{
    char need[24], have[24];
    Err err = OK;
    const int64_t bytes = atomic_load(&ctx->bytes);
    MemoryLimits memory;
    memory_limits(&memory);
    if (w->place == 0 && bytes > memory.limit.bytes)
        err = err_fail(ERR_CONFIG, "%s takes %s %s, %s are available; %s", ctx->verb,
                       text_bytes(bytes, need), memory.limit.text,
                       text_bytes(memory.limit.bytes, have), way_out);
    TRY(world_agree(w, err));
    char words[TRANSPORT_BYTES];
    const TransportSettings transport =
        config_transport(&ctx->config, ctx->device, ctx->launch.comm_world != NULL);
    TRY(transport_open(w, &transport, words));
    if (words[0] && w->rank == 0) fprintf(stderr, "sheaf: %s\n", words);
    return OK;
}

Err infer_load(InferContext *ctx, WorldRank *w, Rank *rank)
{
    LoadResult result;
    const LoadSettings set = {.manifest = &ctx->source.manifest,
                              .scope = LOAD_WEIGHTS,
                              .rank = rank,
                              .comm = w->comm,
                              .all = w->all,
                              .temp = w->arena};
    return world_agree(w, state_load(&set, &result));
}
