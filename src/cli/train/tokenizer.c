/* tokenizer.c -- data.tokenizer=auto: the tokenizer of the folder that the model is from.
 *
 *     model.init   DIR/tokenizer.json of a Hugging Face folder; of a run, RUN/hf/tokenizer.json or
 *                  the data.tokenizer it was trained with
 *     model.name   DIR/tokenizer.json of the folder, or next to the config.json
 *
 * The result is stored in the configuration, so that the run folder names the tokenizer. `auto`
 * stays if there is none: a model with 256 ids then reads text as bytes. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/config/print.h"
#include "cli/train/state.h"
#include "data/tokenizer.h"
#include "state/disk.h"

enum { MAX_RUN_CONFIG_BYTES = 1 << 20 };

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Sets *out to DIR/INNER/tokenizer.json if that exists. */
static Err try_folder(const char *dir, const char *inner, Arena *a, const char **out)
{
    char path[DISK_PATH_BYTES];
    if (*out) return OK;
    const int n = snprintf(path, sizeof path, "%s/%stokenizer.json", dir, inner);
    return n < (int)sizeof path && is_file(path) ? arena_string(a, path, out) : OK;
}

/* Sets *out to data.tokenizer of the run whose config.yaml is DIR/INNER, if that is a file. */
static Err try_run(const char *dir, const char *inner, Arena *a, const char **out)
{
    char path[DISK_PATH_BYTES];
    const char *yaml, *tokenizer;
    size_t bytes;
    if (*out) return OK;
    const int n = snprintf(path, sizeof path, "%s/%sconfig.yaml", dir, inner);
    if (n >= (int)sizeof path || !is_file(path)) return OK;
    TRY(text_read_file(path, MAX_RUN_CONFIG_BYTES, a, &yaml, &bytes));
    TRY(config_yaml_text(yaml, "data", "tokenizer", a, &tokenizer));
    if (tokenizer && is_file(tokenizer)) *out = tokenizer;
    return OK;
}

/* A path of model.init is a Hugging Face folder, a run folder, its checkpoints/ or a step of it. */
static Err try_init(const char *dir, Arena *a, const char **out)
{
    static const char *const up[] = {"", "../", "../../"};
    char inner[16];
    if (!*dir) return OK;
    TRY(try_folder(dir, "", a, out));
    for (int i = 0; i < 3; i++) {
        TRY(try_run(dir, up[i], a, out));
        snprintf(inner, sizeof inner, "%s%s/", up[i], HF_EXTRA_DIR);
        TRY(try_folder(dir, inner, a, out));
    }
    return OK;
}

/* model.name may be a folder, or a file in one. */
static Err try_name(const char *name, Arena *a, const char **out)
{
    const char *dir;
    if (!is_file(name)) return try_folder(name, "", a, out);
    TRY(arena_string(a, name, &dir));
    char *slash = strrchr(dir, '/');
    if (!slash) return try_folder(".", "", a, out);
    slash[slash == dir] = '\0';
    return try_folder(dir, "", a, out);
}

/* The embedding must have a row for every id of the tokenizer. */
static Err check_ids(TrainSession *s)
{
    const char *path = s->config.data_tokenizer;
    Tokenizer *t;
    const size_t mark = arena_mark(&s->arena);
    TRY(tokenizer_load(path, &s->arena, &t));
    const Err err = tokenizer_check_vocab(t, s->model.vocab);
    tokenizer_close(t);
    arena_rewind(&s->arena, mark);
    return err;
}

Err train_tokenizer(TrainSession *s, const char **out)
{
    Config *c = &s->config;
    const char *found = NULL;
    *out = NULL;
    if (strcmp(c->data_tokenizer, "bytes") == 0) return OK;
    if (strcmp(c->data_tokenizer, "auto") != 0) {
        TRY(tokenizer_file(c->data_tokenizer, &s->arena, &c->data_tokenizer));
        *out = c->data_tokenizer;
        return check_ids(s);
    }
    TRY(try_init(c->model_init, &s->arena, &found));
    TRY(try_name(c->model_name, &s->arena, &found));
    if (found) c->data_tokenizer = *out = found;
    return OK;
}

Err train_check_bytes(const TrainSession *s, const Dataset *d)
{
    const int64_t vocab = s->model.vocab;
    if (strcmp(s->config.data_tokenizer, "auto") != 0 || vocab <= BYTE_VOCAB) return OK;
    for (int i = 0; i < d->settings.n_paths; i++) {
        const Tokens *t = &d->file[i];
        if (t->format != FORMAT_TEXT && t->format != FORMAT_JSONL) continue;
        return err_fail(ERR_CONFIG,
                        "%s: is text, the model has a vocabulary of %lld, and there is no "
                        "tokenizer.json next to it; set data.tokenizer to a tokenizer.json, or "
                        "data.tokenizer=bytes to train on bytes, which use %d of these ids",
                        t->path, (long long)vocab, BYTE_VOCAB);
    }
    return OK;
}
