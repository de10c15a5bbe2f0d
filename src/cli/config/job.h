/* job.h -- from the keys of a run to the settings of the compiler, the loop and the data. */
#ifndef CLI_CONFIG_JOB_H
#define CLI_CONFIG_JOB_H

#include "base/precision.h"
#include "cli/config/config.h"
#include "data/tokens.h"
#include "job/job.h"
#include "train/lr.h"
#include "world/transport.h"

/* Local. Settles run.device as far as the keys alone decide: DEVICE_REF for f64 under auto, else
 * the key itself. ERR_CONFIG if the device does not support precision.compute. Opens nothing. */
Err config_device(const Config *c, Option *out);
/* Local. ERR_CONFIG if the run needs kernels that have never run on a GPU. config_device checks it
 * for run.device=cuda; the caller does where auto becomes cuda. */
Err config_check_cuda(const Config *c);
/* Local. The settings of a training step on rank 0. `model` must outlive them. ERR_CONFIG also for
 * the reasons of config_device. */
Err config_job(const Config *c, const ModelConfig *model, JobSettings *out);

/* Local. Sets parallel.cluster from run.cluster, if that is given: parallel.context=auto compares
 * with its rates. */
Err config_cluster(const Config *c, Arena *arena, JobSettings *s);

/* Local. For programs that are planned for a cluster: with run.device=auto they are those of its
 * devices, whatever this machine has, and what these refuse is refused. A cluster whose memory is
 * not the host's has GPUs. */
Err config_cluster_device(const Config *c, const Cluster *cluster, JobSettings *s);

/* Local. The transport of device memory between ranks that run.comm selects. `processes`: the ranks
 * are processes, not threads. */
TransportSettings config_transport(const Config *c, const Device *device, bool processes);

LrSettings config_lr(const Config *c);
/* Local. ERR_CONFIG for keys of FP8 that no GEMM would follow. */
Err config_check_fp8(const Config *c);
/* Local. The element types of precision.compute. */
const PrecisionRow *config_precision(const Config *c);
TokenFormat config_token_format(const Config *c);
/* Local. The default run folder: runs/ and the name of the run file, or of the model without
 * one. */
void config_run_name(const char *file, const char *model, char *out, size_t bytes);

#endif
