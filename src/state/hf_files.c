/* hf_files.c -- opens the safetensors of a Hugging Face folder: one file, or shards with an index.
 *
 *     index    {"metadata": {...},
 *               "weight_map": {"model.norm.weight": "model-00003-of-00003.safetensors"}}
 *
 * If both exist, the single file is used, as in transformers. The index and the shards must agree
 * on every tensor. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "state/disk.h"
#include "state/hf.h"
#include "state/strict.h"

enum { MAX_INDEX_DEPTH = 8, MAX_INDEX_BYTES = 1 << 28, MAX_NAME_BYTES = 255 };

static bool is_there(const char *dir, const char *name)
{
    char path[DISK_PATH_BYTES];
    struct stat st;
    return disk_path(dir, name, path) == OK && stat(path, &st) == 0;
}

bool hf_is_folder(const char *dir)
{
    return is_there(dir, "config.json") && !is_there(dir, "manifest.json");
}

/* True if the name stays inside of the folder. */
static bool is_plain(const char *name)
{
    const size_t n = strlen(name);
    return n > 0 && n <= MAX_NAME_BYTES && name[0] != '.' && !strchr(name, '/');
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const HfIndexEntry *)a)->tensor, ((const HfIndexEntry *)b)->tensor);
}

static Err read_map(const char *path, json_t *map, Arena *a, HfIndexEntry *out, int *n)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!file || !is_plain(file))
            return err_fail(ERR_CHECK,
                            "%s: weight_map of \"%.100s\" is not the plain name of a file of this "
                            "folder",
                            path, tensor);
        TRY(arena_string(a, tensor, &out[*n].tensor));
        TRY(arena_string(a, file, &out[(*n)++].file));
    }
    qsort(out, (size_t)*n, sizeof *out, by_tensor);
    return OK;
}

Err hf_index_parse(const char *path, const char *text, size_t bytes, Arena *a, HfIndexEntry **out,
                   int *n)
{
    json_t *o;
    TRY(strict_parse(path, text, bytes, MAX_INDEX_DEPTH, &o));
    json_t *map = json_object_get(o, "weight_map");
    *n = 0;
    Err err = json_is_object(map) && json_object_size(map) > 0
                  ? ARENA_NEW(a, json_object_size(map), out)
                  : err_fail(ERR_CHECK, "%s: has no weight_map, or an empty one", path);
    if (err == OK) err = read_map(path, map, a, *out, n);
    json_decref(o);
    return err;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the files that the map names, each once. */
static Err list_files(const HfIndexEntry *map, int n, Arena *a, HfFiles *f)
{
    int kept = 0;
    TRY(ARENA_NEW(a, n, &f->name));
    for (int i = 0; i < n; i++) f->name[i] = map[i].file;
    qsort(f->name, (size_t)n, sizeof *f->name, by_text);
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(f->name[i], f->name[i - 1]) != 0) f->name[kept++] = f->name[i];
    f->n_files = kept;
    return OK;
}

static Err no_files(const char *dir)
{
    const bool pickled =
        is_there(dir, "pytorch_model.bin") || is_there(dir, "pytorch_model.bin.index.json");
    if (pickled)
        return err_fail(ERR_CONFIG,
                        "%s: its weights are in pytorch_model.bin, which is a pickle that can run "
                        "code and is not loaded; convert it: in Python, with transformers, "
                        "AutoModelForCausalLM.from_pretrained(\"%s\").save_pretrained(\"OUT\")",
                        dir, dir);
    return err_fail(ERR_CONFIG,
                    "%s: contains neither model.safetensors nor model.safetensors.index.json", dir);
}

/* Finds the files: the single one (*n is 0), or those that the index names. */
static Err find_files(HfFiles *f, Arena *a, HfIndexEntry **map, int *n)
{
    static const char single[] = "model.safetensors", index[] = "model.safetensors.index.json";
    char path[DISK_PATH_BYTES];
    const char *text;
    size_t bytes;
    *n = 0;
    if (is_there(f->dir, single)) {
        TRY(ARENA_NEW(a, 1, &f->name));
        f->name[0] = single;
        f->n_files = 1;
        return OK;
    }
    if (!is_there(f->dir, index)) return no_files(f->dir);
    TRY(disk_path(f->dir, index, path));
    TRY(text_read_file(path, MAX_INDEX_BYTES, a, &text, &bytes));
    TRY(hf_index_parse(path, text, bytes, a, map, n));
    return list_files(*map, *n, a, f);
}

static int by_entry(const void *a, const void *b)
{
    return strcmp(((const HfEntry *)a)->tensor->name, ((const HfEntry *)b)->tensor->name);
}

static Err list_entries(HfFiles *f, Arena *a)
{
    int n = 0;
    for (int i = 0; i < f->n_files; i++) n += f->file[i].n;
    TRY(ARENA_NEW(a, n, &f->entry));
    for (int i = 0; i < f->n_files; i++)
        for (int k = 0; k < f->file[i].n; k++)
            f->entry[f->n++] = (HfEntry){.tensor = &f->file[i].tensor[k], .file = i};
    if (n > 1) qsort(f->entry, (size_t)n, sizeof *f->entry, by_entry);
    for (int i = 1; i < n; i++)
        if (strcmp(f->entry[i].tensor->name, f->entry[i - 1].tensor->name) == 0)
            return err_fail(ERR_CHECK, "%s: tensor \"%.100s\" is in %s and in %s", f->dir,
                            f->entry[i].tensor->name, f->name[f->entry[i - 1].file],
                            f->name[f->entry[i].file]);
    return OK;
}

HfEntry *hf_find(const HfFiles *f, const char *name)
{
    const StTensor key = {.name = name};
    const HfEntry want = {.tensor = &key};
    if (f->n == 0) return NULL;
    return bsearch(&want, f->entry, (size_t)f->n, sizeof *f->entry, by_entry);
}

/* Checks both directions: the map's entries exist, and every tensor is in the map. */
static Err check_map(const HfFiles *f, const HfIndexEntry *map, int n)
{
    for (int i = 0; i < n; i++) {
        const HfEntry *e = hf_find(f, map[i].tensor);
        if (!e || strcmp(f->name[e->file], map[i].file) != 0)
            return err_fail(ERR_CHECK, "%s: the index has \"%.100s\" in %s, and it is %s%s", f->dir,
                            map[i].tensor, map[i].file, e ? "in " : "nowhere",
                            e ? f->name[e->file] : "");
    }
    for (int i = 0; n > 0 && i < f->n; i++) {
        const HfIndexEntry key = {.tensor = f->entry[i].tensor->name};
        if (!bsearch(&key, map, (size_t)n, sizeof *map, by_tensor))
            return err_fail(ERR_CHECK, "%s/%s has \"%.100s\", which the index does not list",
                            f->dir, f->name[f->entry[i].file], key.tensor);
    }
    return OK;
}

Err hf_files_open(const char *dir, Arena *a, HfFiles *out)
{
    HfFiles f = {0};
    HfIndexEntry *map = NULL;
    int n;
    TRY(arena_string(a, dir, &f.dir));
    TRY(find_files(&f, a, &map, &n));
    TRY(ARENA_NEW(a, f.n_files, &f.file));
    for (int i = 0; i < f.n_files; i++) {
        char path[DISK_PATH_BYTES];
        const char *kept;
        TRY(disk_path(dir, f.name[i], path));
        TRY(arena_string(a, path, &kept));
        TRY(st_read(kept, a, &f.file[i]));
    }
    TRY(list_entries(&f, a));
    TRY(check_map(&f, map, n));
    *out = f;
    return OK;
}
