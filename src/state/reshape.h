/* reshape.h -- rewrites a checkpoint for another layout, without the ranks of either.
 *
 *     tensor by tensor, from the first row on:
 *
 *     source    chunk 0   chunk 1   chunk 2 ...        read, verified, cached in the buffer
 *                  \    /   \  /
 *     target    rank 0: chunk 0    rank 1: chunk 0     assembled, hashed, written to their offsets
 *
 * The files of all target ranks are written concurrently, row by row. The cached source chunks
 * are thus those that the next target chunks need, and a source chunk is usually read once,
 * whatever the layouts. Memory is the buffer plus the lists of chunks, independent of the
 * checkpoint's size. */
#ifndef STATE_RESHAPE_H
#define STATE_RESHAPE_H

#include "state/folder.h"

enum { RESHAPE_BUFFER = 64 << 20, MIN_RESHAPE_BUFFER = 2 * CHUNK_BYTES };

typedef struct {
    const Manifest *from;
    const LinkedProgram *to;     /* of any rank of the new layout */
    const char *checkpoints;     /* an existing folder; step N must not be in it */
    const StateScalars *scalars; /* for the new manifest */
    int64_t buffer_bytes;        /* at least MIN_RESHAPE_BUFFER */
    void (*progress)(void *context, int64_t done_bytes); /* may be NULL */
    void *context;
    Arena *temp; /* rewound */
} ReshapeSettings;

typedef struct {
    int64_t bytes;      /* of all tensors */
    int64_t read_bytes; /* larger if a chunk had to be read twice */
    int files;
} ReshapeResult;

/* Local. Writes the files and commits them as a save does. ERR_CHECK names a damaged chunk.
 * ERR_CONFIG if the tensors are not those of the job. After an error step-N.tmp is removed. */
Err state_reshape(const ReshapeSettings *s, ReshapeResult *out);

#endif
