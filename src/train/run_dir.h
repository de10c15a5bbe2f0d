/* run_dir.h -- the folder of a run and its lock.
 *
 *     runs/NAME/lock             held by the process that trains there; contains its pid
 *     runs/NAME/config.yaml      the configuration, all keys with their values
 *     runs/NAME/metrics.jsonl    one line per step
 *     runs/NAME/kernels.txt      GPU only: autotune cache, the algorithm of each GEMM
 *     runs/NAME/saved            exists after the first commit: the run cannot restart at step 1
 *     runs/NAME/hf/              config.json, tokenizer of the Hugging Face folder it started from
 *     runs/NAME/checkpoints/     checkpoints; a restarted run resumes from them (state/folder.h) */
#ifndef TRAIN_RUN_DIR_H
#define TRAIN_RUN_DIR_H

#include <stdbool.h>
#include "base/err.h"

enum { MAX_RUN_DIR = 900 }; /* characters of its path, so that paths of files in it fit too */

typedef struct {
    char path[1024];
    int lock;       /* file descriptor */
    char old[1100]; /* new name of the earlier run's folder; "": there was none */
} RunDir;

/* Local. Creates the folder and its parents, and locks it. ERR_CONFIG with the pid if another
 * process holds the lock for two seconds; a killed process may take a moment to die. ERR_CONFIG if
 * the folder has a config.yaml but no run: nothing is created then. With `fresh` an earlier run is
 * renamed, never deleted; of a linked folder the target is renamed, and the link stays. */
Err run_dir_open(RunDir *d, const char *path, bool fresh);
void run_dir_close(RunDir *d);
/* Local. Creates a folder in it, unless it exists. */
Err run_dir_make(const char *path);

#endif
