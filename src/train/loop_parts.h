/* loop_parts.h -- between loop.c, which goes from step to step, and the files that do its parts. */
#ifndef TRAIN_LOOP_PARTS_H
#define TRAIN_LOOP_PARTS_H

#include "train/loop.h"
#include "train/replicas.h"
#include "train/samples.h"

/* What the ranks add up after a step; all f64, so that one sum does. */
typedef struct {
    double stops; /* ranks that were asked to stop */
    double sent_bytes;
    double flops; /* of live rows */
    double bytes; /* of memory, before the first step */
    double step;  /* 1 + that of the checkpoint to go on from, before the first step */
    /* Of the checkpoint that is being written: ranks that are through, that failed; is it there? */
    double settled, failed, committed, saved_bytes;
} Sums;
enum {
    N_SUMS = sizeof(Sums) / sizeof(double),
    ARENA_LOOP = MAX_COMM_ARENAS - 3
}; /* world.c and state/load.c have the two above */

typedef enum { SAVING_NOTHING, SAVING_WRITES, SAVING_COMMITS } Saving; /* the same on all ranks */

struct TrainLoop {
    const TrainSettings *s;
    Rank rank, valid;
    Position first, at; /* where it started; after the latest step */
    MetricsSinks sinks;
    SampleFiles samples;
    Replicas replicas;
    Sums *sums;          /* registered as ARENA_LOOP */
    size_t sent_before;  /* this rank, up to the step before */
    double peak, mean_s; /* of recent steps, without validation */
    bool refusal_said;   /* why the device captures no step */
    int skips;           /* the latest steps that were skipped, in a row */
    const char *kernels; /* the choices of products, as text; NULL: the device makes none */
    Saver *saver;        /* NULL: nothing is saved */
    Saving saving;
    int64_t saving_step,
        saved_step; /* of the save that is on its way; of the latest that is whole */
    double opened_s;
    TrainResult result;
};

static inline bool loop_is_first(const TrainLoop *l) { return l->s->world->rank == 0; }
double loop_now_s(void);

/* Collective. Adds up (or takes the greatest of) all members of l->sums. */
Err loop_add_up(TrainLoop *l, Reduce reduce);
/* Local. Bytes that left this rank, but for norms, losses and agreements. */
size_t loop_sent_bytes(const TrainLoop *l);
/* Local. Of `count` samples from the cursor on, those that are this rank's. */
Err loop_fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count);

/* step.c. Collective. The next step: what it was, and where the run is now. */
Err loop_step(TrainLoop *l, Metrics *m);
/* step.c. Local. Why the step was skipped; NULL: it was not. */
const char *loop_skip_reason(const Metrics *m);

/* checkpoint.c. Local: opens; tells the sums of the step how far it is. */
Err loop_open_saver(TrainLoop *l);
/* checkpoint.c. Local, on rank 0. Has a checkpoint of the run in this folder ever been whole? */
bool loop_was_saved(const TrainLoop *l);
void loop_put_saver(const TrainLoop *l, Sums *sums);
/* checkpoint.c. Collective: after the sums; begins to save where the run is, unless that is on disk;
 * waits until nothing is being saved. */
Err loop_saver_moved(TrainLoop *l);
Err loop_save(TrainLoop *l);
Err loop_drain_saver(TrainLoop *l);
/* loop.c. Local. A line that is not to be overlooked. */
void loop_warn(const TrainLoop *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* kernels.c. Collective. Which algorithms products run by, the same on all ranks: l->kernels. */
Err loop_autotune(TrainLoop *l, const TrainStart *start);

/* validate.c. Collective. Held-out samples in the order of their own cursor, the same every time. */
Err loop_validate(TrainLoop *l, double *loss);

#endif
