/* train.h -- shared by the files of `sheaf train`: train.c prepares a run once per process,
 * rank.c calls the phases of train/run.h on each rank, hash.c hashes the
 * configuration. */
#ifndef CLI_TRAIN_TRAIN_H
#define CLI_TRAIN_TRAIN_H

#include <signal.h>
#include "cli/config/job.h"
#include "cli/launch.h"
#include "device/registry.h"
#include "state/clip_open.h"
#include "state/source.h"
#include "train/run.h"

/* The point of a save at which a test kills the process; point -1: none. */
typedef struct {
    int point, rank; /* of SavePoint; -1: any rank */
    int64_t step;    /* -1: any */
} KillAt;

/* Everything that the ranks of a process share. */
typedef struct {
    Arena arena;
    Launch launch;
    const char *file;       /* the run file; NULL: none */
    const char *trace_path; /* of this process; NULL: no trace */
    char dir_name[1024];
    char checkpoints[1100]; /* folder */
    StateScalars scalars;
    KillAt kill;
    Config config;
    ModelConfig model;
    Source *init; /* opened model.init; NULL: not set, or the run has a checkpoint */
    Dataset train, valid;
    OpenClips *clips; /* [n_clips]: of both datasets, of a model of clips */
    int n_clips;
    const Device *device;
    char device_text[DEVICE_TEXT_BYTES];
    FlightRecorder *recorder;
    char peak_cache[1024], autotune_cache[1024], processor[128];
    char cluster_path[1024]; /* of `cluster` */
    Cluster cluster;         /* rank 0: for the planned time of a step; no name: none is known */
    const volatile sig_atomic_t *stop;
    TrainRun run;
    bool agreed; /* the error is known to all ranks; rank 0 prints it */
} TrainSession;

/* Collective over all ranks: the body of a rank of the world; `session` is a TrainSession. */
Err train_rank(WorldRank *w, void *session);
/* Local, rank 0. Reads the cluster file of the run: run.cluster, or the one that `sheaf profile`
 * keeps (time.c). Prints a warning if a kept one cannot be read. */
Err train_read_cluster(TrainSession *s);
/* Local, rank 0. Prints where the planned time of a step comes from. */
void report_step_time(const TrainSession *s, const TrainLoop *loop);
/* Local. Hash of all keys but those that may differ between machines. */
Err train_config_hash(const Config *c, Arena *temp, uint64_t *out);

#endif
