/* chunks.h -- which units lie in which chunk.  Pure functions.
 *
 *     embedding layer layer layer | layer layer | layer layer head      7 layers in 3 chunks, even
 *
 * Units are the embedding, the layers and the head, in this order, and a chunk is a run of them;
 * so the embedding is in the first chunk and the head in the last, always. */
#ifndef SCHEDULE_CHUNKS_H
#define SCHEDULE_CHUNKS_H

#include <stdint.h>
#include "base/arena.h"

typedef struct {
    const char *split;
    int units, chunks;
    const double *cost; /* [units], for the split by cost */
} ChunkRequest;

/* Local. `split` is
 *
 *     even        the same number of layers in each chunk; embedding and head count nothing
 *     cost        the dearest chunk as cheap as can be, and then costs as equal as can be
 *     3,2,2       layers in each chunk; or units, when these are what the numbers add up to
 *
 * Where chunks cannot be equal, the first are the larger ones. first_unit is [chunks + 1], as in a
 * Schedule. ERR_CONFIG names parallel.split, what it gives and what there is. */
Err schedule_chunks(const ChunkRequest *r, Arena *arena, const int16_t **first_unit);

#endif
