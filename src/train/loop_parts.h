/* loop_parts.h -- private to train/: the state of the loop, and the functions of its parts. */
#ifndef TRAIN_LOOP_PARTS_H
#define TRAIN_LOOP_PARTS_H

#include "train/loop.h"
#include "train/replicas.h"
#include "train/samples.h"
#include "train/step_plan.h"

/* Numbers that the ranks all-reduce after a step; all are f64, so one transfer is enough. */
typedef struct {
    double stops;    /* ranks that were asked to stop */
    double signals;  /* the numbers of the signals that asked them */
    double unlogged; /* 1: rank 0 could not write a log, and the run ends for it */
    double due;      /* 1: rank 0's clock asks for a checkpoint after this step */
    double sent_bytes;
    double rounds;   /* further rounds of the rows of experts, one per rank that took part */
    double flops;    /* of live rows */
    double released; /* ranks whose threads were released from contended cores (run.pin=auto) */
    double bytes;    /* memory; before the first step only */
    double step;     /* 1 + step of the checkpoint to resume from; before the first step only */
    /* The current save: ranks that have finished writing or failed; ranks that failed; 1 if rank 0
     * has committed it; bytes written. */
    double settled, failed, committed, saved_bytes;
} StepSums;
enum { N_SUMS = sizeof(StepSums) / sizeof(double) };

/* Consecutive skipped steps that end a run: the weights are broken or the learning rate is too
 * high. */
enum { MAX_SKIPS = 8 };

typedef enum { SAVE_IDLE, SAVE_WRITING, SAVE_COMMITTING } SavePhase; /* equal on all ranks */

struct TrainLoop {
    const TrainSettings *s;
    ProgramSet programs; /* of rank and valid */
    Rank rank, valid;    /* valid shares the state and the memory of rank */
    Position first, at;  /* at the start; after the latest step */
    MetricsSinks sinks;
    SampleFiles samples;
    Replicas replicas;
    StepSums *sums;            /* registered as ARENA_LOOP */
    size_t sent_before;        /* bytes that this rank sent before the current step */
    int64_t rounds_before;     /* further rounds of this rank before the current step */
    int64_t rounds_step;       /* the latest step that took some; 0: none has */
    double peak;               /* GEMM flops per second of a rank */
    StepPlan plan;             /* rank 0 */
    double mean_s;             /* moving average of a step, without validation */
    int64_t unlogged;          /* steps that rank 0 could not write to a log, since the warning */
    int logged;                /* consecutive steps that it could write after those */
    char log_error[1600];      /* of the first of them */
    double shown_s;            /* time of the latest line on a terminal */
    bool release_reported;     /* threads were released from their cores, and rank 0 said so */
    bool refusal_reported;     /* the device refused to capture a step, and that was reported */
    int skips;                 /* consecutive skipped steps, up to the latest one */
    const char *autotune_text; /* autotune cache as text; NULL: the device has none */
    Saver *saver;              /* NULL: nothing is saved */
    SavePhase saving;
    int64_t saving_step; /* step of the current save */
    int64_t saved_step;  /* step of the newest committed checkpoint */
    bool due;            /* by time: a checkpoint after the next step that is not skipped */
    double save_began_s; /* time of the latest save, or of the first step */
    double opened_s;
    TrainResult result;
};

static inline bool loop_is_first(const TrainLoop *l) { return l->s->world->rank == 0; }

/* Collective. All-reduces (sum or max) all members of l->sums. */
Err loop_add_up(TrainLoop *l, Reduce reduce);
/* Local. Bytes that this rank has sent, without scalars: norms, losses, agreements. */
size_t loop_sent_bytes(const TrainLoop *l);
/* Local. Fills the rank's micro-batches with its share of `count` samples from `cursor` on. */
Err loop_fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count);

/* step.c. Collective. Runs the next step and advances l->at. */
Err loop_step(TrainLoop *l, Metrics *m);
/* step.c. Local. The reason for skipping the step; NULL: it was not skipped. */
const char *loop_skip_reason(const Metrics *m);

/* checkpoint.c. Local. Opens the saver if the run saves. */
Err loop_open_saver(TrainLoop *l);
/* checkpoint.c. Local, rank 0. True if a checkpoint was ever committed in this run folder. */
bool loop_was_saved(const TrainLoop *l);
/* checkpoint.c. Local. Writes the rank's progress of the current save to the sums of the step. */
void loop_add_save_state(const TrainLoop *l, StepSums *sums);
/* checkpoint.c. Collective, after the sums are reduced. Advances the current save: commits it when
 * all ranks have written, ends it when it is committed or has failed. */
Err loop_advance_save(TrainLoop *l);
/* checkpoint.c. Local. True on rank 0 when the time between two checkpoints has passed. */
bool loop_save_time(const TrainLoop *l);
/* checkpoint.c. Collective. Begins to save the current position, unless it is saved already.
 * Without a snapshot it waits until the save has ended. */
Err loop_save(TrainLoop *l);
/* checkpoint.c. Collective. Waits until no save is in flight. */
Err loop_drain_saver(TrainLoop *l);

/* step.c. Local, rank 0, after the line of a step. Measures the plan's kernels once, and reports
 * it. */
void loop_update_plan(TrainLoop *l);

/* loop.c. Local. Prints a warning. */
void loop_warn(const TrainLoop *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* logs.c. Local, rank 0. Writes a step to all sinks and logs, and prints its line. An error is
 * handled by run.on_save_error. */
void loop_write_step(TrainLoop *l, const Metrics *m);
/* logs.c. Local. The error of a log for which the run ends; OK: none. */
Err loop_log_error(const TrainLoop *l);
/* logs.c. Local. */
Err loop_close_logs(TrainLoop *l);

/* autotune_cache.c. Collective. Loads or measures the algorithms of GEMMs, equal on all ranks; sets
 * l->autotune_text. */
Err loop_autotune(TrainLoop *l, const TrainStart *start);

/* validate.c. Collective. The loss of held-out samples; the same samples every time. */
Err loop_validate(TrainLoop *l, double *loss);

#endif
