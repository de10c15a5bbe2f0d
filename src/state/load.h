/* load.h -- loads a checkpoint into the memory of the current ranks, under any layout.
 *
 *     files    chunk 0   chunk 1   chunk 2   chunk 3   ...      boxes, in the manifest's order
 *     reader   rank 1    rank 0    rank 1    rank 0             of the ranks that need a chunk, the
 *                                                               one that has read the fewest bytes
 *     holders  0 1       0         0 1 2     0                  each gets the boxes of its home
 *
 * Over all ranks, each byte is read once, verified by its hash, and sent to the other holders.
 * Nothing else is read. Every rank computes the same list from the manifest and the homes, so no
 * requests are exchanged.
 *
 * Each rank processes the list in order. Before it waits for a chunk, it has begun to send all of
 * its own earlier chunks; it reads ahead as far as its slots allow. Hence the first chunk that any
 * rank still waits for has always been sent, and the loop cannot deadlock. */
#ifndef STATE_LOAD_H
#define STATE_LOAD_H

#include "comm/comm.h"
#include "run/rank.h"
#include "state/manifest.h"

typedef enum {
    LOAD_ALL,    /* the manifest's tensors must be the job's */
    LOAD_WEIGHTS /* weights only; the job's moments become 0 */
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

/* Collective over all ranks. Loads master weights and moments, then the weights that programs use.
 * This rank's first file error is returned after all chunks are done: agree on it afterwards.
 * ERR_CHECK names a damaged chunk: file, offset, tensor. ERR_CONFIG if the tensors are not those of
 * the job (names, shapes, moments). */
Err state_load(const LoadSettings *s, LoadResult *out);

#endif
