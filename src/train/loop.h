/* loop.h -- the training loop.
 *
 *     each step, on every rank:   fill the micro-batches from the data cursor
 *                                 run the linked program; a step whose gradient norm or loss is
 *                                 not finite, or whose norm is above optim.skip, is skipped
 *                                 all-reduce bytes sent, flops, stop requests, progress of a save
 *                                 every valid_every steps: the loss of held-out samples
 *                                 every save.every steps, when save.minutes have passed on rank
 *                                 0's clock, and after the last step: a checkpoint
 *     rank 0:                     write metrics, print the step's line
 *
 * All ranks end after the same step. A run whose folder has a checkpoint resumes from it
 * (train/resume.h). */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include <signal.h>
#include "data/dataset.h"
#include "state/save.h"
#include "job/job.h"
#include "cost/cluster.h"
#include "train/lr.h"
#include "train/metrics.h"
#include "world/trace.h"
#include "world/world.h"

/* The scalars that a run needs, with its tensors, to resume. */
typedef struct {
    int64_t step;    /* finished steps */
    int64_t cursor;  /* samples consumed */
    int64_t tokens;  /* live tokens consumed */
    int64_t skipped; /* steps that updated nothing; step - skipped counts the updates, for Adam */
} Position;

/* Checkpoints of a run. */
typedef struct {
    const char *folder;  /* exists; NULL: the run neither saves nor resumes */
    int64_t every;       /* steps between checkpoints, which do not block; 0: none between */
    double minutes;      /* between checkpoints, by rank 0's clock; 0: none by time */
    int64_t keep;        /* number of newest checkpoints that are kept */
    bool despite_errors; /* no failed log or save ends the run, except a save after the last step */
    StateScalars job;    /* all but step, cursor, tokens, skipped */
    SaveHook hook;
} SaveSettings;

/* The state that a run starts from. */
typedef struct {
    Position at;
    const Manifest *from; /* the checkpoint; NULL: initial weights */
    const Manifest *init; /* source of the initial weights; NULL: random numbers */
    bool restarted;       /* an earlier run in the folder ended before its first checkpoint */
    bool done;            /* the run has all its steps already */
} TrainStart;

typedef struct {
    const Job *job;       /* JOB_STEP */
    const Job *valid_job; /* JOB_LOSS of the same model and optimizer; NULL: no validation */
    const Device *device;
    bool deterministic, capture, capture_transfers; /* as RankSettings */
    WorldRank *world;                               /* this rank */
    Team *team;
    const Dataset *train, *valid;
    LrSettings lr;
    int64_t global;      /* sequences per step, over all data parallel ranks */
    int64_t valid_every; /* steps between validations; 0: never */
    int64_t valid_limit; /* maximum number of sequences per validation */
    uint64_t seed;
    const Manifest *init;       /* initial weights; NULL: random numbers */
    const char *dir;            /* run folder; exists */
    const char *autotune_cache; /* file in the user's cache folder; NULL: none */
    bool tensorboard;
    bool log_samples;       /* to dir/samples.jsonl */
    int64_t check_every;    /* steps between comparisons of replicas; 0: never */
    bool unplanned;         /* rank 0: no time of a step is planned */
    const Cluster *cluster; /* rank 0: the machine, for the planned time of a step; NULL: unknown */
    double peak_flops; /* GEMM peak of a rank per second; a faster step raises it, so mfu <= 1 */
    const volatile sig_atomic_t *stop; /* not 0: end after the current step */
    SaveSettings save;
    FILE *out, *warn; /* warn: for warnings; NULL: standard error */
    bool terminal;    /* `out` is one: the step's line replaces the previous one */
    Trace *trace;     /* records the events of this rank; NULL: none */
} TrainSettings;

typedef struct {
    int64_t first, steps; /* first step since this start; finished steps of the whole run */
    double first_loss, last_loss, valid_loss;
    int64_t tokens, tokens_here; /* live tokens of the whole run; since this start */
    int64_t peak_bytes;          /* of the rank that needs most memory */
    double peak_flops;           /* of TrainSettings, or the higher rate that a step reached */
    double seconds;
    bool stopped;    /* ended early by TrainSettings.stop */
    int stop_signal; /* of any rank */
    bool has_valid;  /* valid_loss is set */
    bool was_done;   /* the run had all its steps already */
} TrainResult;

typedef struct TrainLoop TrainLoop;

/* Collective over all ranks. Allocates memory, loads a checkpoint or initial weights, opens the
 * saver. Writes nothing to the run folder but the autotune cache. After an error everything is
 * released. */
Err train_loop_open(const TrainSettings *s, TrainLoop **out, TrainStart *start);
/* Local, rank 0. The planned seconds of a step; 0: not known before MEASURED_STEP (step_plan.h).
 * *measures: they will be measured then. */
double train_loop_plan(const TrainLoop *l, bool *measures);
/* Collective over all ranks. Runs the remaining steps, if there are any. */
Err train_loop_run(TrainLoop *l);
/* Local. Releases memory; `err` is the error that ended the rank, or OK. */
void train_loop_close(TrainLoop *l, Err err, TrainResult *out);
/* Collective over all ranks. Opens, runs and closes a loop. The result is equal on all ranks except
 * the seconds. */
Err train_loop(const TrainSettings *s, TrainResult *out);

/* Local. Bytes that a rank allocates: all arenas of training, those of validation that are not
 * shared with it, and the buffers of saves. */
Err train_bytes(const Job *job, const Job *valid, SaveMemory save_memory, Arena *temp,
                int64_t *out);
/* Local. Flops of a rank's GEMMs and attention in one step: those that the model needs, without
 * recomputation. Attention counts the pairs that the mask of the model leaves (ir/pairs.h), GEMMs
 * of experts the rows of balanced routing, whatever room there is for them. */
double job_model_flops(const Job *job);

#endif
