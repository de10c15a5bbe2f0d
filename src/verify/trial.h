/* trial.h -- a model tried under a layout: a few steps on made-up tokens, and all that came of them,
 * put together from all ranks.
 *
 *     rank 0   pieces of q, k ...  --+
 *     rank 1   pieces of k, v ...  --+--> every parameter whole, once, in f64: compare with others
 *     rank 2   copies of those     - - -> compared with what the owners put there
 *
 * Tokens are drawn by (seed, step, sequence, position), so every layout reads the same. */
#ifndef VERIFY_TRIAL_H
#define VERIFY_TRIAL_H

#include "job/job.h"

typedef struct {
    JobSettings job; /* JOB_STEP; the rank and the micro-batches are filled in */
    const Device *device;
    int64_t global; /* sequences a step; need not be a multiple of anything */
    int steps;
    double lr;
    uint64_t seed;
    bool blank;  /* the last sequences of the step have no live tokens */
    bool poison; /* as RankSettings has it */
} TrialSettings;

typedef struct {
    int64_t count;           /* elements of all parameters */
    const int64_t *at;       /* [params + 1]: where each begins */
    double *loss, *norm;     /* [steps] */
    double *gradient;        /* [count]: of the last step, as summed: before clip and division */
    double *weight;          /* [count]: master weights after the last step */
    double copies;           /* greatest difference between a weight and a copy of it elsewhere */
    int64_t sent_bytes;      /* that left ranks in all steps, without scalars */
    int64_t predicted_bytes; /* the same, from the programs */
    double bound;            /* see below */
    int64_t rank_bytes;      /* all arenas of the largest rank */
    Model *model;
} Trial;

/* Local: runs its ranks as threads. The result lives in the arena. ERR_CONFIG and others as job_compile has them, with
 * the rank's number. */
Err trial_run(const TrialSettings *s, Arena *arena, Trial *out);

/* The bound: how far sums of rounded numbers may be apart when they are grouped otherwise, relative
 * to the largest entry: 8 u sqrt(K), u the unit roundoff, K all terms that are added on the way of a
 * number through the model, forward and backward. Roundings go up as often as down, so K of them
 * grow like sqrt(K) (Higham and Mary 2019). The factor 8: an entry is farther off
 * with probability 2 exp(-8^2 / 2) = 3e-14, so among a billion entries none is but in one of 40,000
 * runs. */

/* How far apart two trials are, relative to the largest entry of each tensor; `name`: of the parameter where it is
 * greatest. */
typedef struct {
    double loss, gradient, weight;
    const char *gradient_at, *weight_at;
    bool same; /* bit for bit: losses, norms, gradients, weights */
} TrialGap;
TrialGap trial_gap(const Trial *one, const Trial *other, int steps);

#endif
