/* batch.h -- which sequences of a step a micro-batch of a rank holds.
 *
 *     batch.global=7, batch.micro=2, dp=2        number   0     1     2     3
 *                                                         0 1   2 3   4 5   6      sequences of the step
 *     rank 0   micro-batches 0 2                 micro-batch j of dp rank r is number j * dp + r
 *     rank 1   micro-batches 1 3
 *
 * The last may be short. Numbers past it are empty, and their ranks run them with 0 rows: transfers match. Ranks that differ
 * along tp alone hold the same.
 *
 * One rank that imitates the order of sums of `fold` dp ranks runs theirs one rank after another: 0 2 1 3. */
#ifndef JOB_BATCH_H
#define JOB_BATCH_H

#include "job/job.h"

typedef struct {
    int64_t each; /* sequences of a micro-batch */
    int dp, part; /* dp ranks, and which this is */
    int fold;     /* dp ranks that this one imitates; 1: itself */
    int micros;   /* of this rank */
} BatchSplit;

typedef struct {
    int64_t first, n; /* sequences, counted from the step's first */
} BatchPart;

/* Local. Micro-batches of a rank: the same on all. */
int64_t batch_micros(int64_t global, int64_t each, int64_t dp, int64_t fold);
/* Local. How the job's ranks share a batch. */
BatchSplit batch_split(const Job *job);
/* Local. What micro-batch `micro` holds of a batch of `global` sequences; n is 0 past its end. */
BatchPart batch_part(const BatchSplit *s, int64_t global, int micro);
/* Local. Sequences that a step of all ranks has room for. */
int64_t batch_room(const BatchSplit *s);

#endif
