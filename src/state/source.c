/* source.c -- identifies a path and opens its manifest. */
#define _POSIX_C_SOURCE 200809L
#include "state/source.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "state/disk.h"
#include "state/folder.h"

static bool is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool is_there(const char *folder, const char *name)
{
    char path[DISK_PATH_BYTES];
    struct stat s;
    return disk_path(folder, name, path) == OK && stat(path, &s) == 0;
}

/* Finds RUN/hf for RUN/checkpoints/step-N: the files that `sheaf reshape` copied from a Hugging
 * Face folder. */
static Err find_extra_dir(const char *step, Arena *a, const char **out)
{
    char path[DISK_PATH_BYTES];
    *out = NULL;
    TRY(disk_path(step, "../../" HF_EXTRA_DIR, path));
    return is_folder(path) ? arena_string(a, path, out) : OK;
}

static Err read_step(const char *dir, Arena *a, Source *out)
{
    const size_t mark = arena_mark(a);
    out->kind = SOURCE_CHECKPOINT;
    TRY(arena_string(a, dir, &out->dir));
    Err err = manifest_read(out->dir, a, &out->manifest);
    if (err == OK) err = manifest_check_files(&out->manifest, a);
    if (err != OK) arena_rewind(a, mark);
    TRY(err);
    const char *model = out->manifest.scalars.model;
    TRY(model_config_parse(out->dir, model, strlen(model), a, &out->model));
    for (int i = 0; i < out->manifest.tensors.n; i++)
        if (state_is_marks(&out->manifest.tensors.tensor[i])) out->model.fp8_marks = true;
    return find_extra_dir(out->dir, a, &out->extra_dir);
}

/* Opens the newest complete checkpoint; the note describes the damaged ones that were skipped. */
static Err read_newest(const char *path, const char *checkpoints, Arena *a, Source *out)
{
    char dir[DISK_PATH_BYTES];
    Generation *g;
    int n;
    size_t noted = 0;
    TRY(folder_list(checkpoints, a, &g, &n));
    for (int i = 0; i < n; i++) {
        TRY(disk_path(checkpoints, g[i].name, dir));
        const Err err = read_step(dir, a, out);
        if (err == OK || i + 1 == n) return err;
        noted += (size_t)snprintf(out->note + noted, sizeof out->note - noted,
                                  "%s%.300s; the checkpoint before it is used", noted ? "; " : "",
                                  err_text());
        if (noted >= sizeof out->note) noted = sizeof out->note - 1;
    }
    return err_fail(
        ERR_CONFIG,
        "%s: contains neither a checkpoint nor the config.json of a Hugging Face folder; give a "
        "run folder, its checkpoints/, a step-N/ of it, or a folder with config.json and "
        "model.safetensors",
        path);
}

Err source_open(const char *path, DType wide, const IgnoredKeys *ignore, Arena *a, Source *out)
{
    char inner[DISK_PATH_BYTES];
    *out = (Source){0};
    if (!is_folder(path)) return err_fail(ERR_CONFIG, "%s: is not a folder", path);
    if (is_there(path, "manifest.json")) return read_step(path, a, out);
    if (hf_is_folder(path)) {
        out->kind = SOURCE_HF;
        TRY(arena_string(a, path, &out->dir));
        out->extra_dir = out->dir;
        const ModelSource from = {
            .name = out->dir, .ignore = ignore ? *ignore : (IgnoredKeys){0}, .inference = true};
        TRY(model_config_open(&from, a, &out->model));
        TRY(hf_check_tied(out->dir, &out->model, a));
        return hf_open(out->dir, &out->model, wide, a, &out->manifest);
    }
    TRY(disk_path(path, "checkpoints", inner));
    return read_newest(path, is_folder(inner) ? inner : path, a, out);
}
