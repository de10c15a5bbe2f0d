/* job.h -- from the keys of a run to what the compiler is asked for. */
#ifndef CLI_CONFIG_JOB_H
#define CLI_CONFIG_JOB_H

#include "cli/config/config.h"
#include "data/tokens.h"
#include "job/job.h"
#include "train/lr.h"
#include "world/transport.h"

/* Local. What computes: DEVICE_CPU or DEVICE_REF. auto is cpu, but ref for f64; ERR_CONFIG where
 * the device has not the type of precision.compute. Nothing is opened. */
Err config_device(const Config *c, Option *out);
/* Local. A training step of the run, on rank 0. `model` must outlive the settings. ERR_CONFIG also
 * where config_device refuses. */
Err config_job(const Config *c, const ModelConfig *model, JobSettings *out);

/* Local. By what memory of the device goes between ranks, as run.comm wishes. */
TransportSettings config_transport(const Config *c, const Device *device, bool processes);

LrSettings config_lr(const Config *c);
TokenFormat config_token_format(const Config *c);
/* Local. The run folder when none is given: runs/ and the name of the run file, or of the model. */
void config_run_name(const char *file, const char *model, char *out, size_t bytes);

#endif
