/* trial.h -- a layout trial: a few steps on random tokens under one layout; losses, gradients and
 * weights are assembled from all ranks. Then validation, and generation with these weights.
 *
 *     rank 0   pieces of q, k ...  --+
 *     rank 1   pieces of k, v ...  --+--> every parameter once, complete, in f64
 *     rank 2   copies of those     - - -> compared with the owners' values
 *
 * Tokens are drawn by (seed, step, sequence, position), so every layout reads the same tokens. */
#ifndef VERIFY_TRIAL_H
#define VERIFY_TRIAL_H

#include "job/job.h"
#include "world/transport.h"

typedef struct ExpertChoices ExpertChoices; /* the choices of routers: choices.h */

typedef struct {
    JobSettings job; /* JOB_STEP; the rank and the number of micro-batches are filled in */
    const Device *device;
    const TransportSettings *transport; /* of device memory; NULL: ranks copy it themselves */
    CommWorld *processes;               /* as launched; NULL: ranks are threads */
    int64_t global;                     /* sequences a step; any number */
    int steps;
    double lr;
    uint64_t seed;
    bool documents; /* sequences are packed documents */
    /* Changes token i of a sequence, counted from the first step on; NULL: none is changed. */
    void (*edit)(const void *context, int64_t sequence, int64_t i, InputRow *row);
    const void *context;
    bool blank;                 /* the second half of the step's sequences has no live tokens */
    bool poison;                /* as RankSettings.poison */
    bool generates;             /* also continues prompts with the trained weights; F64 only */
    bool routes;                /* records the choices of routers; of one step */
    const ExpertChoices *given; /* with `routes`: choices to replay; one rank, F64, on the host */
} TrialSettings;

typedef struct {
    int64_t count;       /* elements of all parameters */
    const int64_t *at;   /* [params + 1]: first element of each */
    double *loss, *norm; /* [steps] */
    double valid;        /* loss of the sequences after those of the last step, forward only */
    int32_t *text;       /* [n_text]: greedily generated tokens, -1 where none; NULL: none */
    int64_t n_text;
    double *gradient;        /* [count]: sums of the last step, before clip and division */
    double *weight;          /* [count]: master weights after the last step */
    double copies;           /* greatest difference between a weight and its copy on another rank */
    int64_t sent_bytes;      /* by all ranks in all steps, without scalars */
    int64_t predicted_bytes; /* the same, counted in the programs */
    double bound;            /* of rounding errors, see below */
    int64_t rank_bytes;      /* all arenas of the rank that needs most */
    ExpertChoices *choices;  /* with `routes`, of a model with experts; else NULL */
    bool absent;             /* it ran in another process: nothing of it is known here */
    Model *model;
} Trial;

/* The result is in the arena. Returns the errors of job_compile, with the rank's number. Ranks are
 * threads: local. With `processes`: collective over them. A trial of as many ranks is run by all
 * processes, and all have its result; another by the first one, as threads, and the others return
 * at once, with `absent`. */
Err trial_run(const TrialSettings *s, Arena *arena, Trial *out);

/* The bound limits the difference between sums of rounded numbers that are grouped differently,
 * relative to the largest entry: 8 u sqrt(K). u is the unit roundoff; K is the number of terms
 * added on the path of a number through the model, forward and backward. Rounding errors have
 * random signs, so K of them grow like sqrt(K) (Higham and Mary 2019). The factor 8 is exceeded
 * with probability 2 exp(-8^2 / 2) = 3e-14 per entry: with a billion entries, in one of 40,000
 * runs. */

/* Difference of two trials, relative to the largest entry of each tensor. */
typedef struct {
    double loss, norm, valid, gradient, weight;
    bool same_text;                      /* or none was generated */
    const char *gradient_at, *weight_at; /* the parameter with the greatest difference */
    bool same; /* losses, norms, gradients and weights are equal bit for bit */
} TrialGap;
TrialGap trial_gap(const Trial *one, const Trial *other, int steps);

/* Errors of `other` against the f64 trial `given`, as multiples of the errors of `one` against
 * `exact`: the same trial, unless routers chose other experts (choices.h). An error is
 * the root mean square, over all parameters, of |error| / |exact value| of each, in Frobenius
 * norms: averages over many roundings, which vary far less than the largest entry does. The error
 * of a loss is a single number and may be near 0 by chance, so it counts as at least one rounding
 * of bf16. The loss of validation is one of the losses. gradient_at is the parameter whose error
 * grew most; norm, valid and `same` are not set. */
TrialGap trial_error(const Trial *exact, const Trial *one, const Trial *given, const Trial *other,
                     int steps);

#endif
