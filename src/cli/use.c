/* use.c -- a model opened for use. */
#include "cli/use.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/config/print.h"
#include "cli/interrupt.h"
#include "cli/config/keys.h"
#include "cli/machine.h"
#include "cli/verbs.h"
#include "state/load.h"

enum { IN_FLIGHT = 64, RECORDS = 1024, MAX_JSON_BYTES = 1 << 22 };

Err use_begin(ModelUse *u, const char *verb, FlightRecorder *board)
{
    *u = (ModelUse){.verb = verb, .board = board};
    TRY(arena_open(&u->arena, verb, ARENA_PLENTY));
    TRY(launch_open(&u->launch));
    u->stop = interrupt_watch();
    return OK;
}

/* What is not read is not given. */
static Err check_keys(const ModelUse *u)
{
    const Config *c = &u->config;
    const char *const run[] = {"run.ranks",         "run.threads", "run.pin",
                               "run.device",        "run.comm",    "run.timeout_s",
                               "precision.compute", "model.name",  "parallel.split"};
    for (int i = 0; i < N_KEYS; i++) {
        const Key *key = key_at((KeyId)i);
        bool known = strcmp(key->section, "mesh") == 0;
        for (size_t k = 0; k < sizeof run / sizeof *run; k++)
            known = known || strcmp(key->path, run[k]) == 0;
        if (known || strcmp(c->origin[i], "command line") != 0) continue;
        return err_fail(
            ERR_CONFIG,
            "command line: %s: %s does not read it; it reads mesh.*, run.ranks, "
            "run.threads, run.pin, run.device, run.comm, run.timeout_s, precision.compute and "
            "parallel.split",
            key->path, u->verb);
    }
    if (c->n_model_fields > 0)
        return err_fail(ERR_CONFIG, "command line: model.%s: the model is that of %s",
                        c->model_fields[0].key, u->source.dir);
    return OK;
}

/* The keys given, the source as the model's name, and its type where none is given. */
static Err read_keys(ModelUse *u, const Args *args)
{
    Args with = {.n_set = args->n_set};
    char *name, *type;
    const size_t room = strlen(u->source.dir) + 32;
    bool typed = false;
    TRY(ARENA_NEW(&u->arena, args->n_set + 2, &with.set));
    TRY(ARENA_NEW(&u->arena, room, &name));
    TRY(ARENA_NEW(&u->arena, 64, &type));
    for (int i = 0; i < args->n_set; i++) {
        with.set[i] = args->set[i];
        typed = typed || strncmp(args->set[i], "precision.compute=", 18) == 0;
        if (strncmp(args->set[i], "model.name=", 11) == 0)
            return err_fail(ERR_CONFIG, "command line: model.name: the model is that of %s",
                            u->source.dir);
    }
    snprintf(name, room, "model.name=%s", u->source.dir);
    snprintf(type, 64, "precision.compute=%.30s",
             u->source.kind == SOURCE_HF ? "f32" : u->source.manifest.scalars.dtype);
    with.set[with.n_set++] = name;
    if (!typed) with.set[with.n_set++] = type;
    TRY(launch_config(&u->launch, &with, &u->arena, &u->config));
    return check_keys(u);
}

/* What was asked for; what lies beside the weights; what the run was trained by. A run on token files
 * need not have said by which: bytes, where nothing was said, then means another vocabulary. */
static Err find_tokenizer(ModelUse *u, const char *given, const char **out)
{
    const Source *s = &u->source;
    char path[1200];
    struct stat st;
    *out = given;
    if (given) return OK;
    snprintf(path, sizeof path, "%.1100s/tokenizer.json", s->extra_dir ? s->extra_dir : "");
    if (s->extra_dir && stat(path, &st) == 0) return arena_string(&u->arena, path, out);
    if (s->kind == SOURCE_HF) return OK;
    TRY(config_yaml_text(s->manifest.scalars.config, "data", "tokenizer", &u->arena, out));
    if (*out && strcmp(*out, "bytes") == 0 && s->model.vocab != BYTE_VOCAB) *out = NULL;
    return OK;
}

/* Ids that the tokenizer gives are ids of the model. */
static Err open_tokenizer(ModelUse *u, const char *given)
{
    const Source *s = &u->source;
    const char *path;
    TRY(find_tokenizer(u, given, &path));
    const bool bytes = path ? strcmp(path, "bytes") == 0 : s->model.vocab == BYTE_VOCAB;
    if (!path && !bytes) u->no_text = true;
    if (!path || bytes) return OK;
    TRY(tokenizer_load(path, &u->arena, &u->tokenizer));
    if (u->tokenizer->n_ids > s->model.vocab)
        return err_fail(ERR_CONFIG,
                        "%s has ids up to %lld, the model of %s a vocabulary of %lld; name its own "
                        "tokenizer with --tokenizer FILE",
                        path, (long long)u->tokenizer->n_ids - 1, s->dir,
                        (long long)s->model.vocab);
    return OK;
}

/* A token that ends a text, as the file names it. */
static Err add_end(ModelUse *u, const char *path, const json_t *id)
{
    const json_int_t end = json_is_integer(id) ? json_integer_value(id) : -1;
    if (end < 0 || end > INT32_MAX)
        return err_fail(ERR_CONFIG,
                        "%s: eos_token_id: wants a token, several, or null; correct the file there",
                        path);
    if (u->n_end == MAX_END_TOKENS)
        return err_fail(ERR_CONFIG,
                        "%s: eos_token_id: more than %d tokens; keep those that end a "
                        "text",
                        path, MAX_END_TOKENS);
    u->end[u->n_end++] = (int32_t)end;
    return OK;
}

static Err add_ends(ModelUse *u, const char *path, const json_t *id)
{
    const json_t *one;
    size_t i;
    if (!id || json_is_null(id)) return OK;
    if (!json_is_array(id)) return add_end(u, path, id);
    json_array_foreach(id, i, one) TRY(add_end(u, path, one));
    return OK;
}

/* eos_token_id of a JSON file, where the file is there. */
static Err read_ends(ModelUse *u, const char *name)
{
    char path[1200];
    struct stat st;
    const char *text;
    size_t bytes;
    json_error_t why;
    snprintf(path, sizeof path, "%.1100s/%s", u->source.extra_dir, name);
    if (u->n_end > 0 || stat(path, &st) != 0) return OK;
    TRY(text_read_file(path, MAX_JSON_BYTES, &u->arena, &text, &bytes));
    json_t *root = json_loadb(text, bytes, 0, &why);
    if (!root)
        return err_fail(ERR_CONFIG, "%s:%d: not JSON: %s; correct the file there", path, why.line,
                        why.text);
    const Err err = add_ends(u, path, json_object_get(root, "eos_token_id"));
    json_decref(root);
    return err;
}

/* Those that the folder names, or the tokenizer's own. */
static Err find_ends(ModelUse *u)
{
    if (u->source.extra_dir) TRY(read_ends(u, "generation_config.json"));
    if (u->source.extra_dir) TRY(read_ends(u, "config.json"));
    const int32_t end = encode_end_of_text(u->tokenizer);
    if (u->n_end == 0 && end >= 0) u->end[u->n_end++] = end;
    return OK;
}

Err use_spell(const ModelUse *u, const char *what, Bytes text, Arena *a, EncodedText *out)
{
    TRY(encode_text(u->tokenizer, text, true, a, out));
    if (out->replaced > 0 && u->launch.by.rank == 0)
        fprintf(stderr, "sheaf: %s: not UTF-8 in %lld place%s; U+FFFD stands there\n", what,
                (long long)out->replaced, out->replaced == 1 ? "" : "s");
    return OK;
}

Err use_open(ModelUse *u, const Args *args, const char *tokenizer)
{
    bool f64 = false;
    if (!args->file)
        return err_fail(ERR_CONFIG,
                        "%s: no model is given; give a run folder, a checkpoint or a Hugging Face "
                        "folder, as in `sheaf %s runs/NAME`",
                        u->verb, u->verb);
    for (int i = 0; i < args->n_set; i++)
        f64 = f64 || strcmp(args->set[i], "precision.compute=f64") == 0;
    TRY(source_open(args->file, f64 ? F64 : F32, &u->arena, &u->source));
    if (u->source.note[0] && u->launch.by.rank == 0) fprintf(stderr, "sheaf: %s\n", u->source.note);
    TRY(read_keys(u, args));
    TRY(open_tokenizer(u, tokenizer));
    TRY(find_ends(u));
    return machine_device(&u->config, &u->device);
}

Err use_run(ModelUse *u, Err (*body)(WorldRank *w, void *work), void *work)
{
    const WorldSettings set = {.ranks = u->launch.ranks,
                               .mpi = u->launch.mpi,
                               .in_flight = IN_FLIGHT,
                               .records = RECORDS,
                               .timeout_s = u->config.run_timeout_s,
                               .board = u->board,
                               .body = body,
                               .work = work};
    if (u->prepared != OK && !u->launch.mpi) return u->prepared;
    return world_run(&set);
}

int use_fail(const ModelUse *u, Err err)
{
    const bool mine = u->launch.by.rank == 0 || (err != ERR_PEER && !u->agreed);
    return mine ? cli_fail(err) : err == ERR_CONFIG ? 2 : 1;
}

void use_end(ModelUse *u)
{
    if (u->tokenizer) tokenizer_close(u->tokenizer);
    launch_close(&u->launch);
    if (u->arena.base) arena_close(&u->arena);
}

Err use_job(ModelUse *u, const WorldRank *w, JobSettings *out)
{
    Config c = u->config;
    c.parallel_prepack = false; /* there are no micro-batches, and the device may be another */
    TRY(config_job(&c, &u->source.model, out));
    out->parallel.rank = w->rank;
    return OK;
}

Err use_team(ModelUse *u, const WorldRank *w, Team **out)
{
    return launch_team(&u->launch, w->place, out);
}

Err use_memory(ModelUse *u, WorldRank *w, const char *way_out)
{
    char need[24], have[24];
    Err err = OK;
    const int64_t bytes = atomic_load(&u->bytes), memory = machine_memory_bytes();
    if (w->place == 0 && bytes > memory)
        err = err_fail(ERR_CONFIG, "%s takes %s, this machine has %s; %s", u->verb,
                       text_bytes(bytes, need), text_bytes(memory, have), way_out);
    TRY(world_agree(w, err));
    char words[TRANSPORT_BYTES];
    const TransportSettings transport =
        config_transport(&u->config, u->device, u->launch.mpi != NULL);
    TRY(transport_open(w, &transport, words));
    if (words[0] && w->rank == 0) fprintf(stderr, "sheaf: %s\n", words);
    return OK;
}

Err use_load(ModelUse *u, WorldRank *w, Rank *rank)
{
    LoadResult result;
    const LoadSettings set = {.manifest = &u->source.manifest,
                              .scope = LOAD_WEIGHTS,
                              .rank = rank,
                              .comm = w->comm,
                              .all = w->all,
                              .temp = w->arena};
    return world_agree(w, state_load(&set, &result));
}
