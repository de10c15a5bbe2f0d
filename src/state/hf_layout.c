/* hf_layout.c -- assigns tensors to safetensors files, and creates the files.
 *
 *     model.safetensors                    everything, if it fits
 *     model-00001-of-00002.safetensors     else as many parameters as fit, in the model's order
 *
 * In a file, wider types come first, so that every tensor is aligned. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include "state/disk.h"
#include "state/hf_write.h"
#include "state/strict.h"

enum { LOOK_BACK = 8, NAME_BYTES = 64 };

/* Returns the type of a weight in the source. A checkpoint has one type for all. */
static StType type_there(const Source *s, const char *name)
{
    const Manifest *m = &s->manifest;
    for (int64_t i = 0; s->kind == SOURCE_HF && i < m->n_parts; i++)
        if (strcmp(m->tensors.tensor[m->part[i].tensor].name, name) == 0)
            return m->part[i].stored->type;
    return st_type_of(m->tensors.tensor[0].dtype);
}

/* Parameters that share a tensor (GPT-2's q, k, v) are close to each other, so few entries
 * are searched. */
static bool is_listed(const StTensor *list, int n, const char *name)
{
    for (int i = n - 1; i >= 0 && i >= n - LOOK_BACK; i--)
        if (strcmp(list[i].name, name) == 0) return true;
    return false;
}

static Err add_tensor(const HfWriteSettings *w, const Param *p, int64_t index, Arena *a,
                      StTensor *list, int *n)
{
    const ModelConfig *c = &w->from->model;
    const HfPlace place = hf_place(c, p, index);
    const int64_t columns = p->info.n[p->info.ndim - 1];
    char name[256];
    const bool prefix = c->family == FAMILY_GPT2 && strcmp(place.name, "lm_head.weight") != 0;
    StTensor t = {.ndim = p->info.ndim == 1 ? 1 : 2};
    snprintf(name, sizeof name, "%s%s", prefix ? "transformer." : "", place.name);
    if (is_listed(list, *n, name)) return OK;
    TRY(arena_string(a, name, &t.name));
    t.type = w->type == HF_AS_STORED ? type_there(w->from, p->name) : (StType)w->type;
    t.n[0] = place.transposed ? columns : place.rows;
    t.n[1] = place.transposed ? place.rows : columns;
    t.bytes = t.n[0] * (t.ndim == 2 ? t.n[1] : 1) * st_type_bytes(t.type);
    list[(*n)++] = t;
    return OK;
}

/* Lists n tensors in a file, the wider types first. */
static Err fill_file(StFile *f, const StTensor *from, int n, Arena *a)
{
    static const StPair format = {"format", "pt"};
    f->n_pairs = 1;
    f->pair = &format;
    TRY(ARENA_NEW(a, n, &f->tensor));
    for (int size = 8; size > 0; size /= 2)
        for (int i = 0; i < n; i++) {
            if (st_type_bytes(from[i].type) != size) continue;
            f->tensor[f->n] = from[i];
            f->tensor[f->n++].at = f->data_bytes;
            f->data_bytes += from[i].bytes;
        }
    return OK;
}

/* Returns how many tensors, from i on, fit into one file; at least one. */
static int take(const StTensor *list, int i, int n, int64_t max_bytes)
{
    int64_t bytes = 0;
    int end = i;
    while (end < n && (end == i || bytes + list[end].bytes <= max_bytes))
        bytes += list[end++].bytes;
    return end - i;
}

Err hf_layout(const HfWriteSettings *w, Arena *a, HfShards *out)
{
    Model model;
    StTensor *list;
    HfShards s = {0};
    int64_t most = 0;
    int n = 0;
    ModelConfig config = w->from->model;
    config.fp8_marks = false; /* state of training */
    TRY(model_build(&config, F32, (BatchShape){1, 1}, a, &model));
    for (int p = 0; p < model.n_params; p++) most += hf_tensors(&model.param[p]);
    TRY(ARENA_NEW(a, most, &list));
    for (int p = 0; p < model.n_params; p++)
        for (int64_t i = 0; i < hf_tensors(&model.param[p]); i++)
            TRY(add_tensor(w, &model.param[p], i, a, list, &n));
    for (int i = 0; i < n; s.n++) i += take(list, i, n, w->shard_bytes);
    TRY(ARENA_NEW(a, s.n, &s.file));
    for (int i = 0, k = 0, count; i < n; i += count, k++) {
        char name[NAME_BYTES];
        count = take(list, i, n, w->shard_bytes);
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", k + 1, s.n);
        TRY(arena_string(a, s.n == 1 ? "model.safetensors" : name, &s.file[k].path));
        TRY(fill_file(&s.file[k], list + i, count, a));
        s.data_bytes += s.file[k].data_bytes;
    }
    *out = s;
    return OK;
}

/* Writes the header and extends the file to its full length. */
static Err make_file(const StFile *f, const char *dir, Arena *temp)
{
    char path[DISK_PATH_BYTES];
    const char *head;
    size_t bytes;
    int fd;
    TRY(disk_path(dir, f->path, path));
    TRY(st_header(f, temp, &head, &bytes));
    TRY(disk_create(path, &fd));
    Err err = disk_write(fd, path, 0, head, bytes);
    if (err == OK) err = disk_write(fd, path, (int64_t)bytes + f->data_bytes - 1, "", 1);
    disk_close(fd);
    return err;
}

static Err make_index(const HfShards *s, const char *dir, Arena *temp)
{
    const char *text;
    bool first = true;
    Text t = text_in(temp);
    text_add(&t, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
             (long long)s->data_bytes);
    for (int k = 0; k < s->n; k++)
        for (int i = 0; i < s->file[k].n; i++) {
            text_add(&t, "%s\n    ", first ? "" : ",");
            strict_quote(&t, s->file[k].tensor[i].name);
            text_add(&t, ": \"%s\"", s->file[k].path);
            first = false;
        }
    text_add(&t, "\n  }\n}\n");
    TRY(text_done(&t, &text));
    return hf_put_text(dir, "model.safetensors.index.json", text);
}

Err hf_make_files(const HfShards *s, const char *dir, Arena *temp)
{
    for (int k = 0; k < s->n; k++) {
        const size_t mark = arena_mark(temp);
        TRY(make_file(&s->file[k], dir, temp));
        arena_rewind(temp, mark);
    }
    return s->n > 1 ? make_index(s, dir, temp) : OK;
}
