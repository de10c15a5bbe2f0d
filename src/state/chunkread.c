/* chunkread.c -- reading a chunk, and saying what is wrong with it. */
#define _DEFAULT_SOURCE
#include "state/chunkread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "state/hash.h"

ChunkReader chunk_reader(const Manifest *m)
{
    ChunkReader r = {.manifest = m};
    for (int i = 0; i < READ_FILES; i++) r.file[i] = r.fd[i] = -1;
    return r;
}

void chunk_reader_close(ChunkReader *r)
{
    for (int i = 0; i < READ_FILES; i++) {
        if (r->fd[i] >= 0) close(r->fd[i]);
        r->file[i] = r->fd[i] = -1;
    }
}

static Err file_of(ChunkReader *r, int file, int *fd)
{
    const int at = file % READ_FILES;
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

/* What is being read, for messages. */
typedef struct {
    int64_t at;
    size_t bytes;
    Box box;
} Piece;

/* "step-1/rank-0.safetensors, bytes 64 to 128, weight of wte [0:7, 2:8]" */
static const char *piece_text(const ChunkReader *r, const ManifestPart *part, const Piece *p,
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

static Err read_all(ChunkReader *r, const ManifestPart *part, const Piece *p, char *to)
{
    char text[512];
    int fd;
    TRY(file_of(r, part->file, &fd));
    for (size_t done = 0; done < p->bytes;) {
        const ssize_t n = pread(fd, to + done, p->bytes - done, (off_t)p->at + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_fail(ERR_IO, "%s: %s", piece_text(r, part, p, text), strerror(errno));
        if (n == 0)
            return err_fail(ERR_CHECK, "%s: the file ends after %lld bytes",
                            piece_text(r, part, p, text), (long long)p->at + (long long)done);
        done += (size_t)n;
    }
    return OK;
}

Err chunk_read(ChunkReader *r, const ManifestPart *part, int64_t i, void *to)
{
    const size_t element = dtype_bytes(r->manifest->tensors.tensor[part->tensor].dtype);
    char text[512];
    int64_t before;
    Piece p = {.box = chunk_at(&part->box, CHUNK_BYTES / (int64_t)element, i, &before)};
    p.at = part->at + before * (int64_t)element;
    p.bytes = (size_t)box_count(&p.box) * element;
    TRY(read_all(r, part, &p, to));
    const uint64_t hash = hash_bytes(to, p.bytes);
    if (hash != part->hash[i])
        return err_fail(ERR_CHECK, "%s: damaged; its hash is %016llx, and should be %016llx",
                        piece_text(r, part, &p, text), (unsigned long long)hash,
                        (unsigned long long)part->hash[i]);
    return OK;
}
