/* config_job.h -- from the keys of a run to what the compiler is asked for. */
#ifndef CLI_CONFIG_JOB_H
#define CLI_CONFIG_JOB_H

#include "cli/config.h"
#include "train/job.h"

/* Local. A training step of the run on one rank. `model` must outlive the settings. */
Err config_job(const Config *c, const ModelConfig *model, JobSettings *out);

#endif
