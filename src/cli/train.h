/* train.h -- between train.c, which prepares a run once in a process, train_rank.c, which is what each
 * of its ranks does, and train_same.c, which compares what they were given. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include <signal.h>
#include <stdatomic.h>
#include "cli/config/job.h"
#include "cli/launch.h"
#include "state/source.h"
#include "train/loop.h"
#include "train/peak.h"
#include "train/run_dir.h"

/* Where a test has the process killed; point -1: nowhere. */
typedef struct {
    int point, rank; /* of SavePoint; -1: any rank */
    int64_t step;    /* -1: any */
} KillAt;

/* All that the ranks of a process share. */
typedef struct {
    Arena arena;
    Launch launch;
    const char *file, *trace_path; /* of the run; NULL: none */
    char dir_name[1024];
    char checkpoints[1100]; /* folder */
    StateScalars scalars;
    KillAt kill;
    Config config;
    ModelConfig model;
    Source *init; /* what model.init names; NULL: nothing, or it is not needed */
    Dataset train, valid;
    RunDir dir;
    const Device *device;
    FlightRecorder *board;
    double peak;
    PeakOf peak_of;
    char cache[1024], processor[128]; /* cache: the file of peaks; "" when there is none */
    char kernels[1024];               /* likewise, of choices of products */
    Err prepared;                     /* what that came to */
    const volatile sig_atomic_t *stop;
    _Atomic int64_t bytes;        /* of all ranks here */
    _Atomic int64_t device_bytes; /* what of it is in arenas that a device would hold */
    const Trace **trace;          /* [launch.here] */
    TrainResult result;
    bool agreed; /* the error is one that rank 0 tells */
} TrainSession;

/* Collective over all ranks: the body of a rank of the world; `session` is a TrainSession. */
Err train_rank(WorldRank *w, void *session);
/* Collective over all ranks. ERR_CONFIG when one has other keys or another text to train on. */
Err train_same(WorldRank *w, const TrainSession *s);

#endif
