/* chunk_read.c -- reads one chunk and reports errors with its position.
 *
 *     our files       one run of the file, verified by its hash
 *     other files     runs, `pitch` apart  -->  the tensor's type  -->  transposed back */
#define _DEFAULT_SOURCE
#include "state/chunk_read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "state/box_copy.h"
#include "state/convert.h"
#include "state/hash.h"

ChunkReader chunk_reader(const Manifest *m)
{
    ChunkReader r = {.manifest = m};
    for (int i = 0; i < MAX_READ_FILES; i++) r.file[i] = r.fd[i] = -1;
    return r;
}

void chunk_reader_close(ChunkReader *r)
{
    for (int i = 0; i < MAX_READ_FILES; i++) {
        if (r->fd[i] >= 0) close(r->fd[i]);
        r->file[i] = r->fd[i] = -1;
    }
    free(r->scratch);
    r->scratch = NULL;
}

static Err file_of(ChunkReader *r, int file, int *fd)
{
    const int at = file % MAX_READ_FILES;
    if (r->file[at] != file) {
        char path[4096];
        if (r->fd[at] >= 0) close(r->fd[at]);
        r->file[at] = -1;
        snprintf(path, sizeof path, "%s/%s", r->manifest->dir, r->manifest->file[file].name);
        r->fd[at] = open(path, O_RDONLY | O_CLOEXEC);
        if (r->fd[at] < 0)
            return err_fail(ERR_IO, "%s: %s; a part of the checkpoint is missing", path,
                            strerror(errno));
        r->file[at] = file;
    }
    *fd = r->fd[at];
    return OK;
}

/* The bytes and the box being read, for messages. */
typedef struct {
    int64_t at;
    size_t bytes;
    Box box;
} ChunkRange;

/* Writes "step-1/rank-0.safetensors, bytes 64 to 128, weight of wte [0:7, 2:8]". */
static const char *range_text(const ChunkReader *r, const ManifestPart *part, const ChunkRange *p,
                              char text[512])
{
    const StateTensor *t = &r->manifest->tensors.tensor[part->tensor];
    int n = snprintf(text, 400, "%.160s/%s, bytes %lld to %lld, %s of %.160s", r->manifest->dir,
                     r->manifest->file[part->file].name, (long long)p->at,
                     (long long)p->at + (long long)p->bytes, state_role_name(t->role), t->name);
    if (n > 399) n = 399;
    for (int d = 0; d < p->box.ndim && n < 480; d++)
        n += snprintf(text + n, (size_t)(512 - n), "%s%lld:%lld", d ? ", " : " [",
                      (long long)p->box.lo[d], (long long)p->box.hi[d]);
    if (n < 510) snprintf(text + n, (size_t)(512 - n), "]");
    return text;
}

static Err read_all(ChunkReader *r, const ManifestPart *part, const ChunkRange *p, char *to)
{
    char text[512];
    int fd;
    TRY(file_of(r, part->file, &fd));
    for (size_t done = 0; done < p->bytes;) {
        const ssize_t n = pread(fd, to + done, p->bytes - done, (off_t)p->at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        /* EIO: the disk lost the data, so the file is damaged. Other errors do not prove damage. */
        if (n < 0)
            return err_fail(errno == EIO ? ERR_CHECK : ERR_IO, "%s: %s",
                            range_text(r, part, p, text), strerror(errno));
        if (n == 0)
            return err_fail(ERR_CHECK, "%s: the file ends after %lld bytes",
                            range_text(r, part, p, text), (long long)p->at + (long long)done);
        done += (size_t)n;
    }
    r->read_bytes += (int64_t)p->bytes;
    return OK;
}

static int64_t extent(const Box *box, int d)
{
    return d >= 0 && d < box->ndim ? box->hi[d] - box->lo[d] : 1;
}

/* A chunk as rows of the file. */
typedef struct {
    int64_t rows, width, first, skip; /* first row, and columns before it, from the part on */
} StoredRows;

static StoredRows stored_rows(const ManifestPart *part, const Box *chunk)
{
    const StoredFormat *s = part->stored;
    const int dims = chunk->ndim; /* three: the matrix of one expert */
    const int row_dim = s->transposed || dims == 3 ? 1 : 0;
    const int col_dim = dims == 3 ? 2 : dims == 2 ? 1 - row_dim : -1;
    return (StoredRows){.rows = extent(chunk, row_dim),
                        .width = extent(chunk, col_dim),
                        .first = chunk->lo[row_dim] - part->box.lo[row_dim],
                        .skip = dims > 1 ? chunk->lo[col_dim] - part->box.lo[col_dim] : 0};
}

/* Reads a chunk of another program's file in its order and type, without the gaps between
 * its rows. */
static Err read_runs(ChunkReader *r, const ManifestPart *part, const Box *chunk, char *to)
{
    const StoredFormat *s = part->stored;
    const int64_t element = st_type_bytes(s->type);
    const StoredRows at = stored_rows(part, chunk);
    int64_t rows = at.rows, width = at.width, first = at.first, skip = at.skip;
    if (s->pitch == width) skip += first * width, width *= rows, first = 0, rows = 1;
    for (int64_t i = 0; i < rows; i++) {
        const ChunkRange p = {.at = part->at + ((first + i) * s->pitch + skip) * element,
                              .bytes = (size_t)(width * element),
                              .box = *chunk};
        TRY(read_all(r, part, &p, to + i * width * element));
    }
    return OK;
}

/* Multiplies a row of elements by their scales. The product is f32, as the writer computes it. */
static void scale_row(const StoredScale *s, const float *scale, int64_t column, int64_t n,
                      StType type, char *to)
{
    for (int64_t j = 0; j < n; j++) {
        const float by = scale[(column + j) / s->block[1] - column / s->block[1]];
        float x;
        double wide;
        if (type == ST_F64) {
            memcpy(&wide, to + 8 * j, sizeof wide);
            wide = (double)((float)wide * by);
            memcpy(to + 8 * j, &wide, sizeof wide);
        } else {
            memcpy(&x, to + 4 * j, sizeof x);
            x *= by;
            memcpy(to + 4 * j, &x, sizeof x);
        }
    }
}

/* Multiplies the chunk, in the order of the file and in our type, by its scales: each row of
 * scales that it meets is read once. `space` has room for two such rows. */
static Err apply_scales(ChunkReader *r, const ManifestPart *part, const Box *chunk, StType type,
                        char *space, char *to)
{
    const StoredScale *s = part->stored->scale;
    const StoredRows at = stored_rows(part, chunk);
    const int64_t column = s->column + at.skip, from = column / s->block[1];
    const int64_t n = (column + at.width - 1) / s->block[1] - from + 1;
    const ManifestPart there = {.tensor = part->tensor, .file = s->file};
    float *scale = (float *)(void *)space;
    char *raw = space + n * (int64_t)sizeof *scale;
    int64_t have = -1;
    for (int64_t i = 0; i < at.rows; i++) {
        const int64_t row = (s->row + at.first + i) / s->block[0];
        const ChunkRange p = {.at = s->at + (row * s->columns + from) * st_type_bytes(s->type),
                              .bytes = (size_t)(n * st_type_bytes(s->type)),
                              .box = *chunk};
        if (row != have) {
            TRY(read_all(r, &there, &p, raw));
            (void)convert(s->type, raw, ST_F32, scale, n);
            have = row;
        }
        scale_row(s, scale, column, at.width, type, to + i * at.width * st_type_bytes(type));
    }
    return OK;
}

/* Converts what read_runs has left in the scratch memory to our type. */
static Err convert_stored(ChunkReader *r, const ManifestPart *part, const Box *chunk, StType type,
                          char *to)
{
    (void)convert(part->stored->type, r->scratch, type, to, box_count(chunk));
    if (!part->stored->scale) return OK;
    /* Elements of 8 bits fill a quarter of the first half of the scratch memory. */
    return apply_scales(r, part, chunk, type, r->scratch + CHUNK_BYTES / 2, to);
}

/* Scratch memory: the chunk as in the file, then in our type. */
static Err read_stored(ChunkReader *r, const ManifestPart *part, const Box *chunk, void *to)
{
    const StType type = st_type_of(r->manifest->tensors.tensor[part->tensor].dtype);
    const size_t element = (size_t)st_type_bytes(type);
    if (!r->scratch) r->scratch = malloc(2 * (size_t)CHUNK_BYTES);
    if (!r->scratch)
        return err_fail(ERR_NOMEM, "%d bytes to read %s with", 2 * CHUNK_BYTES, r->manifest->dir);
    TRY(read_runs(r, part, chunk, r->scratch));
    if (!part->stored->transposed) return convert_stored(r, part, chunk, type, to);
    char *converted = r->scratch + CHUNK_BYTES;
    TRY(convert_stored(r, part, chunk, type, converted));
    const BoxView out = box_dense(chunk, to);
    const BoxView in = {.data = converted, .stride = {1, extent(chunk, 0)}};
    box_copy(chunk, element, &in, &out);
    return OK;
}

Err chunk_read(ChunkReader *r, const ManifestPart *part, int64_t i, void *to)
{
    const StateTensors *t = &r->manifest->tensors;
    const size_t element = dtype_bytes(t->tensor[part->tensor].dtype);
    char text[512];
    int64_t before;
    ChunkRange p = {.box = part_chunk(t, part, i, &before)};
    if (part->stored) return read_stored(r, part, &p.box, to);
    p.at = part->at + before * (int64_t)element;
    p.bytes = (size_t)box_count(&p.box) * element;
    TRY(read_all(r, part, &p, to));
    const uint64_t hash = hash_bytes(to, p.bytes);
    if (hash != part->hash[i])
        return err_fail(ERR_CHECK, "%s: damaged; its hash is %016llx, and should be %016llx",
                        range_text(r, part, &p, text), (unsigned long long)hash,
                        (unsigned long long)part->hash[i]);
    return OK;
}
