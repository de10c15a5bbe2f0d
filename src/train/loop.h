/* loop.h -- training: steps, one after another, and what they were.
 *
 *     for each step, on every rank:   fill its micro-batches from the data cursor
 *                                     walk its linked program; a gradient that is not finite, or
 *                                     larger than optim.skip, updates nothing
 *                                     add up over ranks what was sent, and whether one is asked to stop
 *                                     every valid_every steps: the loss of held-out samples
 *                     rank 0 alone:   write metrics.jsonl, the line on the terminal
 *
 * All ranks end after the same step. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <signal.h>
#include "data/dataset.h"
#include "train/job.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "train/trace.h"
#include "train/world.h"

/* Where a run is: all that it needs to go on, besides its tensors. */
typedef struct {
    int64_t step;    /* done */
    int64_t cursor;  /* samples consumed */
    int64_t tokens;  /* live ones */
    int64_t skipped; /* steps that updated nothing; Adam's time is step - skipped */
} Position;

typedef struct {
    const Job *job;       /* JOB_STEP */
    const Job *valid_job; /* JOB_LOSS of the same model and optimizer; NULL: no validation */
    const Device *device;
    WorldRank *world; /* who this is among the ranks; its place on the board is told where it is */
    Team *team;
    const Dataset *train, *valid;
    LrSettings lr;
    int64_t global;      /* sequences a step */
    int64_t valid_every; /* steps; 0: never */
    int64_t valid_limit; /* sequences measured at most */
    uint64_t seed;
    const char *dir; /* of metrics; exists */
    bool tensorboard;
    bool log_samples; /* to dir/samples.jsonl */
    double
        peak_flops; /* per second and rank; raised when a step was faster: nothing is above 100% */
    const volatile sig_atomic_t *stop; /* not 0: end after the step */
    FILE *out;
    bool terminal;
    Trace *trace; /* told what this rank does; NULL: nobody asks */
} TrainSettings;

typedef struct {
    int64_t steps; /* done */
    double first_loss, last_loss, valid_loss;
    int64_t tokens, tokens_here; /* of the run; since this start */
    int64_t peak_bytes;          /* the highest rank's */
    double peak_flops;           /* the one given, or a higher one that a step reached */
    double seconds;
    bool stopped, has_valid;
} TrainResult;

/* Collective over all ranks. The result is the same on all, but for the seconds. */
Err train_run(const TrainSettings *s, TrainResult *out);

/* Local. All that a rank allocates for its tensors: every arena, and those of validation beside the
 * state that it shares. */
int64_t train_bytes(const Job *job, const Job *valid);
/* Local. Flops of products and attention of a rank in one step: what the model needs, without what
 * is recomputed. A causal query sees half of the keys on average. */
double job_model_flops(const Job *job);

#endif
