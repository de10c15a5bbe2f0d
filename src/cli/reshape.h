/* reshape.h -- a reshape under way, as the files of the verb see it. */
#ifndef CLI_RESHAPE_H
#define CLI_RESHAPE_H

#include "cli/config.h"
#include "cli/say.h"
#include "state/manifest.h"
#include "train/job.h"
#include "train/rundir.h"

typedef struct {
    Arena arena, temp;
    const char *source, *target;
    const char **set; /* [n_set + 1]: the last is run.dir */
    int n_set;
    int64_t buffer_bytes;
    char dir[RUNDIR_MAX + 8]; /* DST.tmp */
    char checkpoints[RUNDIR_MAX + 32];
    Manifest manifest;
    Config config;
    ModelConfig model;
    Job job;
    Progress progress;
} Reshape;

/* Local. ERR_CONFIG for a key that changes what is trained, or on what. */
Err reshape_check_keys(const Reshape *r);
/* Local. The configuration that the checkpoint was made with, and what is given: config, model and
 * job; DST.tmp/config.yaml. */
Err reshape_config(Reshape *r);

#endif
