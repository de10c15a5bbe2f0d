/* loop.h -- training: steps, one after another, and what they were.
 *
 *     for each step, on every rank:   fill its micro-batches from the data cursor
 *                                     walk its linked program; a gradient that is not finite, or
 *                                     larger than optim.skip, updates nothing
 *                                     add up over ranks what was sent, and whether one is asked to stop
 *                                     every valid_every steps: the loss of held-out samples
 *                                     every save.every steps, and after the last: a checkpoint
 *                     rank 0 alone:   write metrics.jsonl, the line on the terminal
 *
 * All ranks end after the same step. A run whose folder has a checkpoint goes on from it
 * (train/resume.h). */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <signal.h>
#include "data/dataset.h"
#include "state/save.h"
#include "job/job.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "world/trace.h"
#include "world/world.h"

/* Where a run is: all that it needs to go on, besides its tensors. */
typedef struct {
    int64_t step;    /* done */
    int64_t cursor;  /* samples consumed */
    int64_t tokens;  /* live ones */
    int64_t skipped; /* steps that updated nothing; Adam's time is step - skipped */
} Position;

/* What is saved, where and when. */
typedef struct {
    const char *folder; /* of checkpoints; is there. NULL: nothing is saved, nothing gone on from */
    int64_t every;      /* steps; 0: the last alone */
    int64_t keep;       /* generations */
    bool despite_errors; /* goes on when one cannot be written, but for the last */
    StateScalars job;    /* all but step, cursor, tokens, skipped */
    SaveHook hook;
} SaveSettings;

/* What a run starts from. */
typedef struct {
    Position at;
    const Manifest *from; /* NULL: initial weights */
    const Manifest *init; /* whose weights these are; NULL: random numbers */
    bool restarted;       /* and a run was here that had not come to its first checkpoint */
    bool done;            /* it has all its steps already */
} TrainStart;

typedef struct {
    const Job *job;       /* JOB_STEP */
    const Job *valid_job; /* JOB_LOSS of the same model and optimizer; NULL: no validation */
    const Device *device;
    bool deterministic, capture; /* see RankSettings */
    WorldRank *world; /* who this is among the ranks; its place on the board is told where it is */
    Team *team;
    const Dataset *train, *valid;
    LrSettings lr;
    int64_t global;      /* sequences a step */
    int64_t valid_every; /* steps; 0: never */
    int64_t valid_limit; /* sequences measured at most */
    uint64_t seed;
    const Manifest *init; /* weights to start from; NULL: random numbers */
    const char *dir;      /* of metrics; exists */
    const char
        *autotune_cache; /* a file of the user's: choices of products made before; NULL: none */
    bool tensorboard;
    bool log_samples;    /* to dir/samples.jsonl */
    int64_t check_every; /* steps between comparisons of what ranks hold alike; 0: never */
    double
        peak_flops; /* per second and rank; raised when a step was faster: nothing is above 100% */
    const volatile sig_atomic_t *stop; /* not 0: end after the step */
    SaveSettings save;
    FILE *out, *warn; /* warn: what must not be overlooked; NULL: standard error */
    bool terminal;
    Trace *trace; /* told what this rank does; NULL: nobody asks */
} TrainSettings;

typedef struct {
    int64_t first, steps; /* the first of this start; done, of the run */
    double first_loss, last_loss, valid_loss;
    int64_t tokens, tokens_here; /* of the run; since this start */
    int64_t peak_bytes;          /* the highest rank's */
    double peak_flops;           /* the one given, or a higher one that a step reached */
    double seconds;
    bool stopped, has_valid;
    bool was_done; /* it had all its steps already */
} TrainResult;

typedef struct TrainLoop TrainLoop;

/* Collective over all ranks, all of these. Memory, weights and the saver, up to the first step; nothing is
 * written to the run folder but autotune results. After an error it is closed. */
Err train_loop_open(const TrainSettings *s, TrainLoop **out, TrainStart *start);
Err train_loop_run(TrainLoop *l);
void train_loop_close(TrainLoop *l, Err err, TrainResult *out);
/* All three. The result is the same on all ranks, but for the seconds. */
Err train_loop(const TrainSettings *s, TrainResult *out);

/* Local. All that a rank allocates for its tensors: every arena, those of validation beside the state
 * that it shares, and what saves take. */
Err train_bytes(const Job *job, const Job *valid, SaveRoom room, Arena *temp, int64_t *out);
/* Local. Flops of products and attention of a rank in one step: what the model needs, without what
 * is recomputed. A causal query sees half of the keys on average. */
double job_model_flops(const Job *job);

#endif
