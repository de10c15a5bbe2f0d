/* reshape.h -- the state of a reshape, shared by the files of the verb. */
#ifndef CLI_RESHAPE_RESHAPE_H
#define CLI_RESHAPE_RESHAPE_H

#include "cli/config/config.h"
#include "cli/progress.h"
#include "state/hf_write.h"
#include "job/job.h"
#include "train/run_dir.h"

typedef struct {
    Arena arena, temp;
    const char *source, *target;
    /* [n_set + 3]: the n_set arguments, then run.dir and keys derived from the source. */
    const char **set;
    int n_set;
    const char *plan; /* a plan file; NULL: none */
    int64_t buffer_bytes;
    bool hf;                             /* DST is a Hugging Face folder */
    const char *dtype, *shard, *threads; /* flags of --hf; NULL: not given */
    char dir[MAX_RUN_DIR + 8];           /* DST.tmp */
    char checkpoints[MAX_RUN_DIR + 32];
    Source from;
    Config config;
    ModelConfig model;
    Job job;
    ProgressLine progress;
} Reshape;

/* Local. ERR_CONFIG for a key that changes the model, the data or the optimizer. */
Err reshape_check_keys(const Reshape *r);
/* Local. True if argument i is the model.ignore of a Hugging Face source. */
bool reshape_is_ignore(const Reshape *r, int i);
/* Local. Writes the weights of the source to DST as a Hugging Face folder. */
Err reshape_to_hf(Reshape *r);
/* Local. Copies the other files of a Hugging Face source, config.json and tokenizer, to
 * DST.tmp/hf. */
Err reshape_extra_files(Reshape *r);

/* Local. Fills config, model and job from the configuration of the checkpoint and the arguments;
 * writes DST.tmp/config.yaml. */
Err reshape_config(Reshape *r);

/* Local. Progress callback; `context` is a Reshape. */
void reshape_at(void *context, int64_t done_bytes);

#endif
