/* supervise.h -- `sheaf train ... --supervise N`: a worker that fails is started again.
 *
 *     parent   worker -- dies at step 14 --> restarts.jsonl, stderr --> worker, which goes on at step 11 ...
 *
 * At most N times; not when the run was refused or was asked to end; and not when two restarts in a row
 * got no further than what was there before them: the same failure would only come again.
 *
 * With --fewer each restart has one data parallel rank less (mesh.dp, or mesh.dp_replicate where dp is
 * two axes and there are copies, else mesh.dp_shard), while there are two: batch.global stays, so the
 * ranks that are left do the work of the one that is gone.
 *
 * Ranks that are processes end with their launcher, and what started them must start them again:
 * under mpirun --supervise is refused. */
#ifndef CLI_SUPERVISE_H
#define CLI_SUPERVISE_H

#include "cli/worker.h"

typedef struct {
    const char *times; /* as given; NULL: not supervised */
    bool fewer;
} SuperviseFlags;

/* Local: before any thread. As worker_run, as often as the flags in argv say. */
int supervise_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc,
                  char **argv);

#endif
