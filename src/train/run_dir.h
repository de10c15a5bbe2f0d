/* run_dir.h -- the folder of a run, and who may write to it.
 *
 *     runs/NAME/lock             held by the process that trains there; says its pid
 *     runs/NAME/config.yaml      the configuration with every key settled
 *     runs/NAME/metrics.jsonl    a line a step
 *     runs/NAME/kernels.txt      on a GPU: the algorithm of each product
 *     runs/NAME/saved            there once a checkpoint was whole: never starts over by itself
 *     runs/NAME/checkpoints/     what a run that is started again goes on from (state/folder.h)
 */
#ifndef TRAIN_RUN_DIR_H
#define TRAIN_RUN_DIR_H

#include <stdbool.h>
#include "base/err.h"

enum { MAX_RUN_DIR = 900 }; /* characters of its path: names of files in it still fit */

typedef struct {
    char path[1024];
    int lock;       /* file descriptor */
    char old[1100]; /* what the folder that was there is called now; "" when there was none */
} RunDir;

/* Local. Makes the folder, and the folders above it, and locks it. ERR_CONFIG when another process
 * trains there for more than two seconds (names its pid): one that was killed may take a moment to
 * die. With `fresh` a run that is there is renamed, never deleted. */
Err run_dir_open(RunDir *d, const char *path, bool fresh);
void run_dir_close(RunDir *d);
/* Local. Makes a folder in it; it may be there. */
Err run_dir_make(const char *path);

#endif
