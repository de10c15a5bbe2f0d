/* reshape.c -- assembles and writes the chunks of the target, tensor by tensor. */
#include "state/reshape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "state/disk.h"
#include "state/hash.h"
#include "state/rank_file.h"
#include "state/reshape_source.h"
#include "state/save_file.h"

/* The target file of a rank. */
typedef struct {
    SaveParts parts;
    RankFile layout;
    char path[DISK_PATH_BYTES];
    int64_t next; /* first part of the next tensor */
    bool made;
} TargetFile;

/* A chunk of the target, and its rank. */
typedef struct {
    int rank;
    int64_t part, number;
    Box box;
} TargetChunk;

enum { MAX_OPEN_FILES = 64 };

typedef struct {
    const ReshapeSettings *s;
    StateTensors tensors;
    ReshapeSource source;
    char *out; /* the chunk being assembled */
    int ranks;
    TargetFile *target;
    int file[MAX_OPEN_FILES], fd[MAX_OPEN_FILES]; /* each file has one entry, as in chunk_read.h */
    int64_t done_bytes;
    ReshapeResult result;
} Reshaper;

static int64_t max_chunk(const StateTensor *t)
{
    return CHUNK_BYTES / (int64_t)dtype_bytes(t->dtype);
}

static Err file_of(Reshaper *r, int rank, int *fd)
{
    TargetFile *t = &r->target[rank];
    const int at = rank % MAX_OPEN_FILES;
    if (r->file[at] != rank) {
        if (r->fd[at] >= 0) disk_close(r->fd[at]);
        r->file[at] = r->fd[at] = -1;
        TRY(t->made ? disk_reopen(t->path, &r->fd[at]) : disk_create(t->path, &r->fd[at]));
        r->file[at] = rank;
        t->made = true;
    }
    *fd = r->fd[at];
    return OK;
}

static Err write_chunk(Reshaper *r, const TargetChunk *chunk)
{
    TargetFile *t = &r->target[chunk->rank];
    const ManifestPart *part = &t->layout.part[chunk->part];
    const size_t element = dtype_bytes(r->tensors.tensor[part->tensor].dtype);
    const size_t bytes = (size_t)box_count(&chunk->box) * element;
    int64_t before;
    int fd;
    (void)chunk_at(&part->box, CHUNK_BYTES / (int64_t)element, chunk->number, &before);
    t->parts.hash[t->parts.first[chunk->part] + chunk->number] = hash_bytes(r->out, bytes);
    TRY(file_of(r, chunk->rank, &fd));
    TRY(disk_write(fd, t->path, part->at + before * (int64_t)element, r->out, bytes));
    r->done_bytes += (int64_t)bytes;
    if (r->s->progress) r->s->progress(r->s->context, r->done_bytes);
    return OK;
}

static int by_rows(const void *a, const void *b)
{
    const TargetChunk *x = a, *y = b;
    if (x->box.lo[0] != y->box.lo[0]) return x->box.lo[0] < y->box.lo[0] ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Lists the target's chunks of a tensor, of all ranks, sorted by row; out == NULL: only
 * counts them. */
static int64_t list_chunks(Reshaper *r, int tensor, TargetChunk *out)
{
    const int64_t max = max_chunk(&r->tensors.tensor[tensor]);
    int64_t n = 0;
    for (int k = 0; k < r->ranks; k++) {
        const StateParts *p = &r->target[k].parts.parts;
        int64_t i = r->target[k].next, before;
        for (; i < p->n && p->part[i].tensor == tensor; i++)
            for (int64_t c = 0; c < chunk_count(&p->part[i].box, max); c++, n++)
                if (out)
                    out[n] = (TargetChunk){k, i, c, chunk_at(&p->part[i].box, max, c, &before)};
        if (out) r->target[k].next = i;
    }
    if (out && n > 1) qsort(out, (size_t)n, sizeof *out, by_rows);
    return n;
}

static Err reshape_tensor(Reshaper *r, int tensor)
{
    const size_t mark = arena_mark(r->s->temp);
    const int64_t n = list_chunks(r, tensor, NULL);
    TargetChunk *chunk;
    TRY(ARENA_NEW(r->s->temp, n, &chunk));
    list_chunks(r, tensor, chunk);
    for (int64_t i = 0; i < n; i++) {
        TRY(reshape_source_box(&r->source, tensor, &chunk[i].box, r->out));
        TRY(write_chunk(r, &chunk[i]));
    }
    arena_rewind(r->s->temp, mark);
    return OK;
}

/* Writes the headers and syncs the files. */
static Err finish_files(Reshaper *r)
{
    for (int k = 0; k < r->ranks; k++) {
        TargetFile *t = &r->target[k];
        const size_t mark = arena_mark(r->s->temp);
        const char *head;
        size_t bytes;
        int fd;
        if (t->parts.parts.n == 0) continue;
        TRY(rank_file_header(&r->tensors, &t->layout, r->s->temp, &head, &bytes));
        TRY(file_of(r, k, &fd));
        TRY(disk_write(fd, t->path, 0, head, bytes));
        r->file[k % MAX_OPEN_FILES] = r->fd[k % MAX_OPEN_FILES] = -1;
        TRY(disk_finish(fd, t->path));
        arena_rewind(r->s->temp, mark);
        r->result.files++;
    }
    return OK;
}

static Err open_targets(Reshaper *r)
{
    const ReshapeSettings *s = r->s;
    char folder[DISK_PATH_BYTES], name[RANK_FILE_NAME_BYTES];
    TRY(folder_begin(s->checkpoints, s->scalars->step, folder, sizeof folder));
    r->ranks = s->to->mesh->world;
    TRY(ARENA_NEW(s->temp, r->ranks, &r->target));
    for (int k = 0; k < r->ranks; k++) {
        TargetFile *t = &r->target[k];
        TRY(save_parts_open(&t->parts, s->to, k, s->temp));
        t->layout = (RankFile){
            .step = s->scalars->step, .rank = k, .n = t->parts.parts.n, .part = t->parts.in_file};
        rank_file_name(k, name);
        TRY(disk_path(folder, name, t->path));
        if (t->layout.n > 0) TRY(rank_file_layout(&r->tensors, &t->layout, s->temp));
        r->result.bytes += t->parts.at[t->parts.parts.n];
    }
    return OK;
}

/* One chunk of the buffer is for the target; the others cache source chunks. */
static Err open_buffer(Reshaper *r)
{
    const ReshapeSettings *s = r->s;
    const int n = (int)(s->buffer_bytes / CHUNK_BYTES);
    ReshapeSource *in = &r->source;
    void *data;
    if (s->buffer_bytes < MIN_RESHAPE_BUFFER)
        return err_fail(ERR_CONFIG, "a buffer of %lld bytes; the least is two chunks, %d",
                        (long long)s->buffer_bytes, MIN_RESHAPE_BUFFER);
    TRY(arena_push(s->temp, (size_t)n * CHUNK_BYTES, &data));
    TRY(ARENA_NEW(s->temp, n - 1, &in->cache));
    r->out = data;
    for (in->n_cached = 0; in->n_cached < n - 1; in->n_cached++)
        in->cache[in->n_cached].data = r->out + (int64_t)(in->n_cached + 1) * CHUNK_BYTES;
    return OK;
}

static Err reshape_all(Reshaper *r)
{
    const ReshapeSettings *s = r->s;
    TRY(state_tensors(s->to, s->temp, &r->tensors));
    TRY(reshape_source_open(&r->source, s->from, &r->tensors, s->temp));
    TRY(open_targets(r));
    for (int t = 0; t < r->tensors.n; t++) TRY(reshape_tensor(r, t));
    TRY(finish_files(r));
    const CommitSettings commit = {.checkpoints = s->checkpoints,
                                   .ranks = r->ranks,
                                   .keep = 2,
                                   .tensors = &r->tensors,
                                   .scalars = s->scalars,
                                   .hook = NULL};
    return folder_commit(&commit, s->temp);
}

/* Closes files, and after an error removes the incomplete checkpoint. */
static Err clear_up(Reshaper *r, Err err)
{
    char text[1024];
    for (int i = 0; i < MAX_OPEN_FILES; i++)
        if (r->fd[i] >= 0) disk_close(r->fd[i]);
    chunk_reader_close(&r->source.reader);
    if (err == OK) return OK;
    snprintf(text, sizeof text, "%s", err_text());
    (void)folder_abandon(r->s->checkpoints, r->s->scalars->step); /* keeps the first error */
    return err_fail(err, "%s", text);
}

Err state_reshape(const ReshapeSettings *s, ReshapeResult *out)
{
    Reshaper r = {.s = s, .source = {.reader = chunk_reader(s->from)}};
    const size_t mark = arena_mark(s->temp);
    for (int i = 0; i < MAX_OPEN_FILES; i++) r.file[i] = r.fd[i] = -1;
    Err err = open_buffer(&r);
    if (err == OK) err = reshape_all(&r);
    err = clear_up(&r, err);
    arena_rewind(s->temp, mark);
    TRY(err);
    r.result.read_bytes = r.source.reader.read_bytes;
    *out = r.result;
    return OK;
}
