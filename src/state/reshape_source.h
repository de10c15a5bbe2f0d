/* reshape_source.h -- what a reshape reads: boxes of tensors, from chunks that are kept while there is
 * room. For reshape.c. */
#ifndef STATE_RESHAPE_SOURCE_H
#define STATE_RESHAPE_SOURCE_H

#include "state/chunk_read.h"

/* A source chunk in memory. */
typedef struct {
    const ManifestPart *part; /* NULL: none */
    int64_t number;
    int64_t used; /* when; the longest unused one goes first */
    char *data;
} CachedChunk;

typedef struct {
    const Manifest *from;
    int *tensor;    /* [job's tensors]: of the manifest */
    int64_t *first; /* [manifest tensors + 1]: their parts */
    int64_t
        *reach; /* [manifest parts]: past the last row of it and of those of its tensor before */
    ChunkReader reader;
    CachedChunk *cache;
    int n_cached;
    int64_t clock;
} ReshapeSource;

/* Local. `want` are the job's tensors; reader and kept[] are the caller's. ERR_CONFIG unless they are the
 * manifest's. */
Err reshape_source_open(ReshapeSource *s, const Manifest *m, const StateTensors *want, Arena *a);
/* Local. A box of a tensor of the job, dense. */
Err reshape_source_box(ReshapeSource *s, int tensor, const Box *box, char *out);

#endif
