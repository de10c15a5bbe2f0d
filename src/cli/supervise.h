/* supervise.h -- `sheaf train ... --supervise N`: restarts a worker that fails.
 *
 *     parent   worker -- dies at step 14 --> restarts.jsonl, stderr --> worker resumes at step 11
 *
 * There are at most N restarts, and none after a refused request or a stop request
 * (cli/interrupt.h), which the parent passes on to the worker. The pause before a restart is 0.1 s.
 * It doubles, up to a minute, with each restart that makes no progress: a file server may be away
 * for a while.
 *
 * With --fewer each restart has one data-parallel rank less, as long as there are two: mesh.dp, or,
 * if dp is two axes, mesh.dp_replicate while there are replicas, else mesh.dp_shard. batch.global
 * is unchanged, so the remaining ranks take over the work. run.check_every becomes 0, and the
 * report says so, if the remaining ranks hold no copies.
 *
 * Ranks that are processes end with their launcher, which must start them again. Under mpirun
 * --supervise is therefore refused. */
#ifndef CLI_SUPERVISE_H
#define CLI_SUPERVISE_H

#include "cli/worker.h"

typedef struct {
    const char *times; /* the value of --supervise; NULL: not supervised */
    bool fewer;
} SuperviseFlags;

/* Local, before any thread. Calls worker_run, and again after failures if argv has --supervise.
 * Returns the exit status of the last worker. */
int supervise_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc,
                  char **argv);

#endif
