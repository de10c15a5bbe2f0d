/* chunk_read.h -- reads and verifies chunks of a checkpoint. */
#ifndef STATE_CHUNK_READ_H
#define STATE_CHUNK_READ_H

#include "state/manifest.h"

enum { MAX_READ_FILES = 64 };

/* A cache of open files. File i is kept in entry i % MAX_READ_FILES and evicts the file there. */
typedef struct {
    const Manifest *manifest;
    int file[MAX_READ_FILES], fd[MAX_READ_FILES]; /* -1: none */
    char *scratch; /* a chunk in the file's type or order, if that differs */
    int64_t read_bytes;
} ChunkReader;

ChunkReader chunk_reader(const Manifest *m);
void chunk_reader_close(ChunkReader *r);

/* Local. Reads chunk i of a part to `to`, dense and in the tensor's type. ERR_IO: a read failed.
 * ERR_CHECK: the file is too short, or the hash is wrong. Both name the file, the offset, the
 * tensor and the box. */
Err chunk_read(ChunkReader *r, const ManifestPart *part, int64_t i, void *to);

#endif
