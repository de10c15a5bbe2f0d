/* load.h -- a checkpoint into the memory of the ranks that are there now, however they lie.
 *
 *     files    chunk 0   chunk 1   chunk 2   chunk 3   ...      boxes of tensors, in the manifest's order
 *     reader   rank 1    rank 0    rank 1    rank 0             one of those that want some of it, the one
 *                                                               that has read least so far
 *     holders  0 1       0         0 1 2     0                  each gets what its home wants of it
 *
 * Each byte is read once, over all ranks, checked against its hash, and sent on; nothing else is
 * read. Every rank makes the same list from the manifest and the homes, so nobody asks anybody.
 *
 * A rank walks the list. Before it waits for a chunk it has begun to send all chunks of its own
 * that come before; it reads ahead as far as its slots go. So the first chunk that somebody still
 * waits for has always been sent: the walk cannot stop. */
#ifndef STATE_LOAD_H
#define STATE_LOAD_H

#include "comm/comm.h"
#include "run/rank.h"
#include "state/manifest.h"

typedef enum {
    LOAD_ALL,    /* the manifest's tensors are the job's */
    LOAD_WEIGHTS /* its moments, if it has any, are left; the job's, if it has any, are 0 */
} LoadScope;

typedef struct {
    const Manifest *manifest;
    LoadScope scope;
    Rank *rank;
    Comm *comm; /* NULL: one rank */
    RankList all;
    Arena *temp; /* rewound */
} LoadSettings;

typedef struct {
    int64_t read_bytes; /* by this rank */
    int64_t sent_bytes;
} LoadResult;

/* Collective over all ranks. Master weights and moments, then weights as programs use them. The
 * first error of this rank comes back when all are through: agree on it. ERR_CHECK names a damaged
 * chunk: file, offset, tensor. ERR_CONFIG when the tensors are not those of the job (names,
 * shapes, moments). */
Err state_load(const LoadSettings *s, LoadResult *out);
/* Local. ERR_CONFIG unless the manifest's tensors are the job's; names the first that is not. */
Err state_matches(const Manifest *m, const StateTensors *want);

#endif
