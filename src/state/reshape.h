/* reshape.h -- a checkpoint rewritten for another layout, without the ranks of either.
 *
 *     tensor by tensor, and in it from the first row on:
 *
 *     source    chunk 0   chunk 1   chunk 2 ...        read, checked, kept while there is room
 *                  \    /   \  /
 *     target    rank 0: chunk 0    rank 1: chunk 0     put together, hashed, written where they belong
 *
 * The files of all target ranks are written side by side, so that a source chunk is mostly read
 * once, whatever is cut: what is kept is what the next target chunks of these rows need. Memory is
 * the buffer, whatever the size of the checkpoint, and the lists of chunks. */
#ifndef STATE_RESHAPE_H
#define STATE_RESHAPE_H

#include "state/folder.h"

enum { RESHAPE_BUFFER = 64 << 20, MIN_RESHAPE_BUFFER = 2 * CHUNK_BYTES };

typedef struct {
    const Manifest *from;
    const LinkedProgram *to;     /* of any rank of the new layout */
    const char *checkpoints;     /* folder, is there; step N must not be in it */
    const StateScalars *scalars; /* for the new manifest */
    int64_t buffer_bytes;        /* at least MIN_RESHAPE_BUFFER */
    void (*progress)(void *context, int64_t done_bytes); /* may be NULL */
    void *context;
    Arena *temp; /* rewound */
} ReshapeSettings;

typedef struct {
    int64_t bytes;      /* of all tensors */
    int64_t read_bytes; /* more, where a chunk had to be read again */
    int files;
} ReshapeResult;

/* Local. Writes the files, and commits them as a save does. ERR_CHECK names a damaged chunk;
 * ERR_CONFIG when the tensors are not those of the job. After an error step-N.tmp is gone. */
Err state_reshape(const ReshapeSettings *s, ReshapeResult *out);

#endif
