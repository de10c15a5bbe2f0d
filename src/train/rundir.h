/* rundir.h -- the folder of a run, and who may write to it.
 *
 *     runs/NAME/lock             held by the process that trains there; says its pid
 *     runs/NAME/config.yaml      the configuration with every key settled
 *     runs/NAME/metrics.jsonl    a line a step
 */
#ifndef TRAIN_RUNDIR_H
#define TRAIN_RUNDIR_H

#include <stdbool.h>
#include "base/err.h"

enum { RUNDIR_MAX = 900 }; /* characters of its path: names of files in it still fit */

typedef struct {
    char path[1024];
    int lock;       /* file descriptor */
    char old[1100]; /* what the folder that was there is called now; "" when there was none */
} RunDir;

/* Local. Makes the folder, and the folders above it, and locks it. ERR_CONFIG when another process
 * trains there (names its pid), and when a run is there already, unless `fresh`: then that folder
 * is renamed, never deleted. */
Err rundir_open(RunDir *d, const char *path, bool fresh);
void rundir_close(RunDir *d);

#endif
