/* chunk_read.h -- chunks of a checkpoint, read and checked. */
#ifndef STATE_CHUNK_READ_H
#define STATE_CHUNK_READ_H

#include "state/manifest.h"

enum { MAX_READ_FILES = 64 };

/* Files that are open: each has one place, and leaves it to the next that has the same. */
typedef struct {
    const Manifest *manifest;
    int file[MAX_READ_FILES], fd[MAX_READ_FILES]; /* -1: none */
    char *scratch; /* a chunk as its file has it, where that is otherwise */
    int64_t read_bytes;
} ChunkReader;

ChunkReader chunk_reader(const Manifest *m);
void chunk_reader_close(ChunkReader *r);

/* Local. Chunk i of a part, dense and in the tensor's type, to `to`. ERR_IO and ERR_CHECK name the file, where in it, the
 * tensor and the box: what cannot be read, what ends too early, what does not hash as it should. */
Err chunk_read(ChunkReader *r, const ManifestPart *part, int64_t i, void *to);

#endif
