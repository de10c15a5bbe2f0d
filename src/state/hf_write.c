/* hf_write.c -- copies chunks of the source to their places in files that already exist.
 *
 *     thread 0   chunk 0   chunk 3   chunk 4 ...      each free thread takes the next
 *     thread 1   chunk 1   chunk 2   chunk 5 ...
 *
 * The places are those that hf_open returns for the new folder: reading and writing share
 * one description. */
#define _DEFAULT_SOURCE
#include "state/hf_write.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "state/box_copy.h"
#include "state/chunk_read.h"
#include "state/convert.h"
#include "state/disk.h"
#include "state/folder_parts.h"

typedef struct {
    const HfWriteSettings *w;
    char dir[DISK_PATH_BYTES]; /* DST.tmp */
    Manifest to;
    /* [source tensors]: part of `to`, for experts that of the first; NULL: a moment */
    const ManifestPart **place;
    int64_t *first; /* [source parts + 1]: number of chunks before */
    int n_files, *fd;
    char (*path)[DISK_PATH_BYTES];
    int threads;
    char *buffer; /* three chunks per thread */
    _Atomic int64_t next, done, overflow, elements;
    atomic_bool failed;
    pthread_mutex_t lock;
    Err err; /* of the first failure */
    char text[1024];
} HfWriter;

enum { BUFFERS_PER_THREAD = 3 };

/* ---- one chunk ---- */

/* Returns the chunk in the order and type of its file. */
static const char *as_stored(HfWriter *x, const ManifestPart *to, const Box *box, char *buffer)
{
    const StType from = st_type_of(x->to.tensors.tensor[to->tensor].dtype);
    const size_t element = (size_t)st_type_bytes(from);
    char *transposed = buffer + CHUNK_BYTES, *out = buffer + 2 * (size_t)CHUNK_BYTES;
    const char *data = buffer;
    if (to->stored->transposed) {
        const BoxView in = box_dense(box, buffer);
        const BoxView there = {.data = transposed, .stride = {1, box->hi[0] - box->lo[0]}};
        box_copy(box, element, &in, &there);
        data = transposed;
    }
    if (to->stored->type == from) return data;
    x->overflow += convert(from, data, to->stored->type, out, box_count(box));
    return out;
}

/* Writes a box of one tensor of the file: of a vector, a matrix, or the matrix of one expert. */
static Err write_runs(const HfWriter *x, const ManifestPart *to, const Box *box, const char *data)
{
    const StoredFormat *s = to->stored;
    const int64_t element = st_type_bytes(s->type);
    const int r = s->transposed || box->ndim == 3 ? 1 : 0, c = box->ndim == 3 ? 2 : 1 - r;
    int64_t rows = box->hi[r] - box->lo[r], first = box->lo[r];
    int64_t width = box->ndim > 1 ? box->hi[c] - box->lo[c] : 1;
    int64_t skip = box->ndim > 1 ? box->lo[c] : 0;
    if (s->pitch == width) skip += first * width, width *= rows, first = 0, rows = 1;
    for (int64_t i = 0; i < rows; i++)
        TRY(disk_write(x->fd[to->file], x->path[to->file],
                       to->at + ((first + i) * s->pitch + skip) * element,
                       data + i * width * element, (size_t)(width * element)));
    return OK;
}

/* A box of several experts goes to a tensor each. */
static Err write_box(const HfWriter *x, const ManifestPart *to, const Box *box, const char *data)
{
    if (box->ndim < 3) return write_runs(x, to, box, data);
    const int64_t n = box->hi[0] - box->lo[0];
    const int64_t each = n ? box_count(box) / n * st_type_bytes(to->stored->type) : 0;
    for (int64_t e = box->lo[0]; e < box->hi[0]; e++) {
        Box one = *box;
        one.lo[0] = e, one.hi[0] = e + 1;
        TRY(write_runs(x, to + e, &one, data + (e - box->lo[0]) * each));
    }
    return OK;
}

static const ManifestPart *part_of_chunk(const HfWriter *x, int64_t chunk, int64_t *number)
{
    int64_t lo = 0, hi = x->w->from->manifest.n_parts;
    while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (x->first[mid] <= chunk)
            lo = mid;
        else
            hi = mid;
    }
    while (x->first[lo + 1] <= chunk) lo++; /* skips parts without chunks */
    *number = chunk - x->first[lo];
    return &x->w->from->manifest.part[lo];
}

static Err move_chunk(HfWriter *x, ChunkReader *reader, int64_t chunk, char *buffer)
{
    const StateTensors *t = &x->w->from->manifest.tensors;
    int64_t number, before;
    const ManifestPart *part = part_of_chunk(x, chunk, &number);
    const ManifestPart *to = x->place[part->tensor];
    const Box box = part_chunk(t, part, number, &before);
    TRY(chunk_read(reader, part, number, buffer));
    TRY(write_box(x, to, &box, as_stored(x, to, &box, buffer)));
    x->elements += box_count(&box);
    x->done += box_count(&box) * (int64_t)dtype_bytes(t->tensor[part->tensor].dtype);
    return OK;
}

/* ---- all chunks ---- */

static void record_error(HfWriter *x, Err err)
{
    pthread_mutex_lock(&x->lock);
    if (x->err == OK) {
        x->err = err;
        snprintf(x->text, sizeof x->text, "%s", err_text());
    }
    x->failed = true;
    pthread_mutex_unlock(&x->lock);
}

static void work(void *writing, int64_t thread)
{
    HfWriter *x = writing;
    ChunkReader reader = chunk_reader(&x->w->from->manifest);
    char *buffer = x->buffer + thread * BUFFERS_PER_THREAD * CHUNK_BYTES;
    const int64_t n = x->first[x->w->from->manifest.n_parts];
    for (int64_t i; !x->failed && (i = x->next++) < n;) {
        const Err err = move_chunk(x, &reader, i, buffer);
        if (err != OK) record_error(x, err);
        if (thread == 0 && x->w->progress) x->w->progress(x->w->context, x->done);
    }
    chunk_reader_close(&reader);
}

/* Finds the part of the new folder for a tensor, by name. It usually has the same index. Parts of
 * one tensor are back to back. */
static const ManifestPart *place_of(const HfWriter *x, const char *name, int guess)
{
    const int n = x->to.tensors.n;
    for (int i = 0; i < n; i++) {
        const int at = (guess + i) % n;
        if (strcmp(x->to.tensors.tensor[at].name, name) != 0) continue;
        for (int64_t p = 0; p < x->to.n_parts; p++)
            if (x->to.part[p].tensor == at) return &x->to.part[p];
    }
    return NULL;
}

/* Computes the target of each tensor of the source, and the number of chunks before each part. */
static Err list_work(HfWriter *x)
{
    const Manifest *m = &x->w->from->manifest;
    Arena *a = x->w->temp;
    void *buffer;
    int weights = 0;
    TRY(ARENA_NEW(a, m->tensors.n, &x->place));
    TRY(ARENA_NEW(a, m->n_parts + 1, &x->first));
    for (int i = 0; i < m->tensors.n; i++) {
        const StateTensor *t = &m->tensors.tensor[i];
        if (t->role != STATE_WEIGHT || state_is_marks(t)) continue;
        x->place[i] = place_of(x, t->name, weights++);
        if (!x->place[i])
            return err_fail(ERR_CHECK, "%s: %s is no parameter of its model", m->dir, t->name);
    }
    for (int64_t p = 0; p < m->n_parts; p++)
        x->first[p + 1] =
            x->first[p] + (x->place[m->part[p].tensor] ? part_chunks(&m->tensors, &m->part[p]) : 0);
    TRY(arena_push(a, (size_t)x->threads * BUFFERS_PER_THREAD * CHUNK_BYTES, &buffer));
    x->buffer = buffer;
    return OK;
}

static Err open_files(HfWriter *x)
{
    TRY(ARENA_NEW(x->w->temp, x->to.n_files, &x->fd));
    TRY(ARENA_NEW(x->w->temp, x->to.n_files, &x->path));
    for (int i = 0; i < x->to.n_files; i++) {
        TRY(disk_path(x->dir, x->to.file[i].name, x->path[i]));
        TRY(disk_reopen(x->path[i], &x->fd[i]));
        x->n_files = i + 1;
    }
    return OK;
}

static Err sync_files(HfWriter *x)
{
    while (x->n_files > 0) {
        const int i = --x->n_files;
        TRY(disk_finish(x->fd[i], x->path[i]));
    }
    return OK;
}

static int64_t count_elements(const StateTensors *t)
{
    int64_t n = 0;
    for (int i = 0; i < t->n; i++) n += shape_count(&t->tensor[i].shape);
    return n;
}

static Err fill_folder(HfWriter *x, HfWriteResult *out)
{
    const HfWriteSettings *w = x->w;
    const DType width = w->from->manifest.tensors.tensor[0].dtype;
    HfShards shards;
    const char *config;
    TRY(hf_config_text(w, w->temp, &config));
    TRY(hf_put_text(x->dir, "config.json", config));
    TRY(hf_layout(w, w->temp, &shards));
    TRY(hf_make_files(&shards, x->dir, w->temp));
    TRY(hf_open(x->dir, &w->from->model, width, w->temp, &x->to));
    TRY(list_work(x));
    TRY(open_files(x));
    team_run(w->team, x->threads, work, x);
    if (x->err != OK) return err_fail(x->err, "%s", x->text);
    if (x->elements != count_elements(&x->to.tensors))
        return err_fail(ERR_CHECK, "%s: has %lld elements of weights, and its model %lld",
                        w->from->dir, (long long)x->elements,
                        (long long)count_elements(&x->to.tensors));
    TRY(sync_files(x));
    *out = (HfWriteResult){.files = shards.n, .bytes = shards.data_bytes, .overflow = x->overflow};
    if (!w->tokenizer) TRY(hf_copy_tokenizer(w->extra_dir, x->dir, &out->tokenizer_files));
    if (!w->tokenizer) return OK;
    out->tokenizer_files++;
    return hf_copy_file(w->tokenizer, x->dir, "tokenizer.json");
}

static Err begin_folder(HfWriter *x)
{
    struct stat s;
    const char *dir = x->w->dir;
    if (snprintf(x->dir, sizeof x->dir, "%s.tmp", dir) >= (int)sizeof x->dir)
        return err_fail(ERR_CONFIG, "%.60s...: a path of over %d bytes", dir, DISK_PATH_BYTES);
    if (lstat(dir, &s) == 0)
        return err_fail(ERR_CONFIG,
                        "%s already exists; nothing is overwritten: choose another DST, or "
                        "remove it",
                        dir);
    if (mkdir(x->dir, 0777) == 0) return OK;
    return err_fail(
        errno == EEXIST ? ERR_CONFIG : ERR_IO, "%s: cannot be created: %s%s", x->dir,
        strerror(errno),
        errno == EEXIST
            ? "; left by an interrupted run, or being written: remove it if nothing runs"
            : "");
}

static Err name_folder(const HfWriter *x)
{
    char parent[DISK_PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", x->w->dir);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    TRY(disk_sync_folder(x->dir));
    if (rename(x->dir, x->w->dir) != 0)
        return err_fail(ERR_IO, "%s: cannot be renamed to %s: %s", x->dir, x->w->dir,
                        strerror(errno));
    return disk_sync_folder(slash ? parent : ".");
}

/* Removes DST.tmp; the first error is returned. */
static Err give_up(HfWriter *x, Err err)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    while (x->n_files > 0) disk_close(x->fd[--x->n_files]);
    (void)folder_remove(x->dir, NULL, NULL);
    return err_fail(err, "%s", text);
}

/* True if weights are stored in 8 bits, with scales. */
static bool has_scales(const Manifest *m)
{
    for (int64_t i = 0; i < m->n_parts; i++)
        if (m->part[i].stored && m->part[i].stored->scale) return true;
    return false;
}

Err hf_write(const HfWriteSettings *w, HfWriteResult *out)
{
    HfWriter *x;
    const size_t mark = arena_mark(w->temp);
    if (w->type == HF_AS_STORED && has_scales(&w->from->manifest))
        return err_fail(ERR_CONFIG,
                        "%s: its weights are in FP8 with scales, which are read and not written; "
                        "choose a type: --dtype bf16, f16 or f32",
                        w->from->dir);
    TRY(ARENA_NEW(w->temp, 1, &x));
    x->w = w;
    x->threads = w->team ? team_threads(w->team) : 1;
    pthread_mutex_init(&x->lock, NULL);
    Err err = begin_folder(x);
    if (err == OK) {
        err = fill_folder(x, out);
        if (err == OK) err = name_folder(x);
        if (err != OK) err = give_up(x, err);
    }
    pthread_mutex_destroy(&x->lock);
    arena_rewind(w->temp, mark);
    return err;
}
