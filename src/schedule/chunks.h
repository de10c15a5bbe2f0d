/* chunks.h -- the split of a model's units into pipeline chunks. Pure functions.
 *
 *     embedding layer layer layer | layer layer | layer layer head      7 layers in 3 chunks, even
 *
 * Units are the embedding, the layers and the head, in this order. A chunk is a run of consecutive
 * units, so the embedding is always in the first chunk and the head in the last. */
#ifndef SCHEDULE_CHUNKS_H
#define SCHEDULE_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"

typedef struct {
    const char *split;
    int units, chunks;
    const double *cost; /* [units], for the split by cost; equal on all ranks */
} ChunkRequest;

/* Local. `split` is one of
 *
 *     even        the same number of layers in each chunk; embedding and head cost nothing
 *     cost        the most expensive chunk as cheap as possible, then costs as equal as possible
 *     3,2,2       layers in each chunk; or units, if the numbers add up to the number of units
 *
 * If the chunks cannot be equal, the first ones are larger. first_unit is [chunks + 1], as in a
 * Schedule. ERR_CONFIG names parallel.split, the sum that it gives and the sum needed. */
Err schedule_chunks(const ChunkRequest *r, Arena *arena, const int16_t **first_unit);

/* Chunks of stages that differ. A chunk takes the sum of its costs over its speed. */
typedef struct {
    int units, chunks;   /* at most as many chunks as units */
    const double *cost;  /* [units] */
    const double *speed; /* [chunks]; NULL: 1 */
    const int16_t *most; /* [chunks]: units that it may have; NULL: any number */
} ChunkDeal;

/* Local. As `cost`: the chunk that takes longest as short as possible, then all as equal as
 * possible. *found is false if the chunks may not have as many units. */
Err schedule_deal(const ChunkDeal *d, Arena *arena, const int16_t **first_unit, bool *found);

#endif
