/* score.h -- how likely a model finds given sequences: the loss of each, by forward passes alone.
 *
 *     sequence   tokens t0 t1 t2 t3 t4, from = 3         loss of t3 given t0 t1 t2, and of t4
 *                weights    0  0  1  1
 *
 * A sequence is a micro-batch; what counts in it has weight 1. Perplexity is sequences that are
 * windows of a text, multiple choice is a sequence for each choice. Ranks along dp have sequences
 * of their own; on all other meshes it is the trainer's forward. */
#ifndef INFER_SCORE_H
#define INFER_SCORE_H

#include "job/job.h"
#include "world/world.h"

typedef struct {
    const int32_t *token;
    int64_t n;    /* at most one more than the rows of a sequence */
    int64_t from; /* the first token that counts; at least 1: nothing says the first */
} ScoreSequence;

typedef struct {
    const Job *job;
    const Device *device;
    WorldRank *world;
    Team *team;
} ScorerSettings;

typedef struct {
    ScorerSettings settings;
    Rank rank;
    double *cell; /* [room]: what ranks tell each other */
    int64_t room; /* sequences of a pass of all ranks */
} Scorer;

/* Local. The job of such passes: `base` says what model, type and mesh; sequences of `seq_len`
 * rows, `micros` of them on a rank in each pass. It keeps no moments. */
JobSettings score_settings(const JobSettings *base, int64_t seq_len, int micros);
/* Local. Weights are not there yet: load them into `rank`. */
Err scorer_open(Scorer *s, const ScorerSettings *settings, Arena *a);
void scorer_close(Scorer *s);
/* Collective over all ranks, with the same n. loss[i]: of sequence i, the sum in nats over what
 * counts; on all ranks. `next` tells sequence i, on every rank; it is asked in order, once for each,
 * and what it answers must stay until the call returns. */
typedef struct {
    Err (*next)(void *context, int64_t i, ScoreSequence *out);
    void *context;
    int64_t n;
} ScoreSource;
Err scorer_run(Scorer *s, const ScoreSource *source, double *loss);

#endif
