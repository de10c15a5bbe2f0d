/* reshape_source.h -- the input of a reshape: reads boxes of tensors through an LRU cache of source
 * chunks. For reshape.c. */
#ifndef STATE_RESHAPE_SOURCE_H
#define STATE_RESHAPE_SOURCE_H

#include "state/chunk_read.h"

/* A source chunk in memory. */
typedef struct {
    const ManifestPart *part; /* NULL: none */
    int64_t number;
    int64_t used; /* time of the last use; the least recently used is evicted */
    char *data;
} CachedChunk;

typedef struct {
    const Manifest *from;
    int *tensor;    /* [job's tensors]: index in the manifest */
    int64_t *first; /* [manifest tensors + 1]: first part of each */
    int64_t *reach; /* [parts]: largest end row of it and of its tensor's parts before */
    ChunkReader reader;
    CachedChunk *cache;
    int n_cached;
    int64_t clock;
} ReshapeSource;

/* Local. `want` are the job's tensors. The caller provides `reader` and `cache`. ERR_CONFIG unless
 * the tensors are the manifest's. */
Err reshape_source_open(ReshapeSource *s, const Manifest *m, const StateTensors *want, Arena *a);
/* Local. Reads a box of a tensor of the job, dense. */
Err reshape_source_box(ReshapeSource *s, int tensor, const Box *box, char *out);

#endif
