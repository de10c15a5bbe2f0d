/* batch.h -- distribution of a step's sequences over ranks and micro-batches.
 *
 *     batch.global=7, batch.micro=2, dp=2        number   0     1     2     3
 *                                                         0 1   2 3   4 5   6     sequences
 *     rank 0   micro-batches 0 2                 micro-batch j of dp rank r is number j * dp + r
 *     rank 1   micro-batches 1 3
 *
 * The last micro-batch may be short. Ranks run empty ones (0 rows) past the end of the batch, so
 * that transfers match. Ranks that differ only along tp have the same sequences; along cp they have
 * other tokens of the same sequences (layout/tokens.h).
 *
 * With numerics.fold one rank reproduces the order of sums of `fold` dp ranks: it runs their
 * micro-batches one dp rank after another, 0 2 1 3. */
#ifndef JOB_BATCH_H
#define JOB_BATCH_H

#include "job/job.h"

typedef struct {
    int64_t each; /* sequences of a micro-batch */
    int dp, part; /* dp ranks; index of this one */
    int fold;     /* dp ranks whose order of sums this rank reproduces; 1: none */
    int micros;   /* micro-batches of this rank */
} BatchSplit;

typedef struct {
    int64_t first, n; /* sequences, counted from the first one of the step */
} BatchPart;

/* Local. Micro-batches of a rank; equal on all ranks. */
int64_t batch_micros(int64_t global, int64_t each, int64_t dp, int64_t fold);
/* Local. The split of a batch over the ranks of the job. */
BatchSplit batch_split(const Job *job);
/* Local. Sequences of micro-batch `micro` in a batch of `global` sequences; n is 0 past its end. */
BatchPart batch_part(const BatchSplit *s, int64_t global, int micro);
/* Local. Sequences that a step of all ranks has room for. */
int64_t batch_room(const BatchSplit *s);

#endif
