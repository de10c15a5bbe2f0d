/* score.h -- the loss of given sequences, by forward passes.
 *
 *     sequence   tokens t0 t1 t2 t3 t4, from = 3         loss of t3 and t4, given the tokens before
 *                weights    0  0  1  1
 *
 * A sequence is a micro-batch; its scored tokens have weight 1. Perplexity scores windows of a
 * text, multiple choice scores one sequence per choice. Ranks along dp score different sequences;
 * all other axes work as in training. */
#ifndef INFER_SCORE_H
#define INFER_SCORE_H

#include "job/job.h"
#include "world/world.h"

typedef struct {
    const int32_t *token;
    int64_t n;    /* at most seq_len + 1 */
    int64_t from; /* first scored token; at least 1: token 0 has no prediction */
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
    double *cell;     /* [capacity]: losses, summed over ranks */
    int64_t capacity; /* sequences of one pass of all ranks */
} Scorer;

/* Local. Settings of a scoring job: model, type and mesh of `base`; `micros` sequences of `seq_len`
 * rows per rank and pass; no optimizer moments. */
JobSettings score_settings(const JobSettings *base, int64_t seq_len, int micros);
/* Local. Does not load weights; the caller loads them into `rank`. */
Err scorer_open(Scorer *s, const ScorerSettings *settings, Arena *a);
void scorer_close(Scorer *s);
/* Sequences to score. `next` returns sequence i; it is called on every rank, in order, once per
 * sequence. The tokens must stay valid until scorer_run returns. */
typedef struct {
    Err (*next)(void *context, int64_t i, ScoreSequence *out);
    void *context;
    int64_t n;
} ScoreSource;
/* Collective over all ranks, with the same source. loss[i] on every rank is the sum of the losses
 * of sequence i's scored tokens, in nats. */
Err scorer_run(Scorer *s, const ScoreSource *source, double *loss);

#endif
