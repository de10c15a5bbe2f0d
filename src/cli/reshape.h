/* reshape.h -- a reshape under way, as the files of the verb see it. */
#ifndef CLI_RESHAPE_H
#define CLI_RESHAPE_H

#include "cli/config/config.h"
#include "cli/progress.h"
#include "state/hf_write.h"
#include "job/job.h"
#include "train/run_dir.h"

typedef struct {
    Arena arena, temp;
    const char *source, *target;
    const char **set; /* [n_set + 3]: those given, then run.dir and what follows from the source */
    int n_set;
    int64_t buffer_bytes;
    bool hf;                             /* DST is a Hugging Face folder */
    const char *dtype, *shard, *threads; /* of it, as given; NULL: not */
    char dir[MAX_RUN_DIR + 8];           /* DST.tmp */
    char checkpoints[MAX_RUN_DIR + 32];
    Source from;
    Config config;
    ModelConfig model;
    Job job;
    ProgressLine progress;
} Reshape;

/* Local. ERR_CONFIG for a key that changes what is trained, or on what. */
Err reshape_check_keys(const Reshape *r);
/* Local. A Hugging Face folder of the source's weights; ends with DST. */
Err reshape_to_hf(Reshape *r);
/* Local. What the source is besides weights, as a folder of the run: DST.tmp/hf. */
Err reshape_extra_files(Reshape *r);

/* Local. The configuration that the checkpoint was made with, and what is given: config, model and
 * job; DST.tmp/config.yaml. */
Err reshape_config(Reshape *r);

double reshape_now_s(void);
void reshape_at(void *context, int64_t done_bytes);
int64_t reshape_bytes(const StateTensors *t);

#endif
