/* init.c -- model.init: initial weights from a checkpoint or a Hugging Face folder.
 *
 * Its model must equal that of the run, except for keys that the run sets itself
 * (model.rope_theta=...) and initializer_range, which only affects random weights. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "cli/train/state.h"
#include "state/disk.h"
#include "state/folder_parts.h"
#include "state/hf_write.h"

enum { VALUE_BYTES = 80 };

/* True if the run file or an argument sets the key or a part of it (rope_scaling.factor). */
static bool is_set(const Config *c, const char *key)
{
    const size_t n = strlen(key);
    for (int i = 0; i < c->n_model_fields; i++) {
        const char *given = c->model_fields[i].key;
        if (strncmp(given, key, n) == 0 && (!given[n] || given[n] == '.')) return true;
    }
    return strcmp(key, "initializer_range") == 0;
}

static void value_text(const json_t *x, char out[VALUE_BYTES])
{
    char *text = x ? json_dumps(x, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    snprintf(out, VALUE_BYTES, "%s", text ? text : "not set");
    free(text);
}

/* ERR_CONFIG unless all members of `a` are in `b` with the same values. */
static Err covers(const TrainSession *s, json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach(a, key, value)
    {
        char here[VALUE_BYTES], there[VALUE_BYTES];
        const json_t *other = json_object_get(b, key);
        if ((other && json_equal(value, other)) || is_set(&s->config, key)) continue;
        value_text(value, here);
        value_text(other, there);
        return err_fail(
            ERR_CONFIG,
            "model.init=%.200s: its model differs from that of the run: %s is %s in one and %s "
            "in the other; set model.name to that folder, or set model.%s",
            s->config.model_init, key, here, there, key);
    }
    return OK;
}

static Err check_model(const TrainSession *s)
{
    json_t *mine = json_loads(s->scalars.model, 0, NULL);
    json_t *theirs = json_loads(s->init->manifest.scalars.model, 0, NULL);
    Err err = mine && theirs ? OK : err_fail(ERR_CHECK, "%s: its model is not JSON", s->init->dir);
    if (err == OK) err = covers(s, mine, theirs);
    if (err == OK) err = covers(s, theirs, mine);
    json_decref(mine);
    json_decref(theirs);
    return err;
}

Err train_init(TrainSession *s)
{
    JobSettings set;
    Generation *g;
    int n = 0;
    if (!*s->config.model_init) return OK;
    if (!s->config.run_fresh) TRY(folder_list(s->checkpoints, &s->arena, &g, &n));
    if (n > 0) return OK;
    TRY(config_job(&s->config, &s->model, &set));
    TRY(ARENA_NEW(&s->arena, 1, &s->init));
    const IgnoredKeys ignore = {s->config.model_ignore.at, s->config.model_ignore.n};
    TRY(source_open(s->config.model_init, dtype_wide(set.dtype), &ignore, &s->arena, s->init));
    if (s->init->note[0]) fprintf(stderr, "sheaf: %s\n", s->init->note);
    return check_model(s);
}

/* True if the run's tokenizer is that of the folder, or not known. */
static bool has_tokenizer_of(const Config *c, const char *dir)
{
    char path[DISK_PATH_BYTES];
    struct stat theirs, mine;
    if (strcmp(c->data_tokenizer, "auto") == 0) return true;
    return disk_path(dir, "tokenizer.json", path) == OK && stat(path, &theirs) == 0 &&
           stat(c->data_tokenizer, &mine) == 0 && theirs.st_dev == mine.st_dev &&
           theirs.st_ino == mine.st_ino;
}

Err train_keep_files(TrainSession *s)
{
    char dir[DISK_PATH_BYTES];
    Arena temp;
    if (!s->init || !s->init->extra_dir) return OK;
    Source from = *s->init;
    from.model = s->model; /* with the keys that the run sets */
    TRY(disk_path(s->run.folder.path, HF_EXTRA_DIR, dir));
    (void)folder_remove(dir, NULL, NULL); /* of a start that ended before its first checkpoint */
    TRY(arena_open(&temp, "config", (size_t)1 << 26));
    const Err err = hf_keep_files(&from, dir, has_tokenizer_of(&s->config, from.extra_dir), &temp);
    arena_close(&temp);
    return err;
}
