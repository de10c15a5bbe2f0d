/* loop_parts.h -- between loop.c, which goes from step to step, and the files that do its parts. */
#ifndef TRAIN_LOOP_PARTS_H
#define TRAIN_LOOP_PARTS_H

#include "train/loop.h"
#include "train/samples.h"

/* What the ranks add up after a step; all f64, so that one sum does. */
typedef struct {
    double stops; /* ranks that were asked to stop */
    double sent_bytes;
    double flops; /* of live rows */
    double bytes; /* of memory, before the first step */
} Sums;
enum { N_SUMS = sizeof(Sums) / sizeof(double), ARENA_LOOP = MAX_COMM_ARENAS - 1 };

typedef struct {
    const TrainSettings *s;
    Rank rank, valid;
    Position first, at; /* where it started; after the latest step */
    MetricsFiles files;
    SampleFiles samples;
    Sums *sums;          /* registered as ARENA_LOOP */
    size_t sent_before;  /* this rank, up to the step before */
    double peak, mean_s; /* of recent steps, without validation */
    int skips;           /* the latest steps that were skipped, in a row */
    TrainResult result;
} Loop;

static inline bool loop_is_first(const Loop *l) { return l->s->world->rank == 0; }
double loop_now_s(void);

/* Collective. Adds up (or takes the greatest of) all members of l->sums. */
Err loop_add_up(Loop *l, Reduce reduce);
/* Local. Bytes that left this rank, but for norms, losses and agreements. */
size_t loop_sent_bytes(const Loop *l);
/* Local. Of `count` samples from the cursor on, those that are this rank's. */
Err loop_fill(const Job *job, const Dataset *data, Rank *r, int64_t cursor, int64_t count);

/* step.c. Collective. The next step: what it was, and where the run is now. */
Err loop_step(Loop *l, Metrics *m);
/* step.c. Local. Why the step was skipped; NULL: it was not. */
const char *loop_skip_reason(const Metrics *m);

/* validate.c. Collective. Held-out samples in the order of their own cursor, the same every time. */
Err loop_validate(Loop *l, double *loss);

#endif
