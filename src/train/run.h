/* run.h -- the phases of a training run on one of its ranks. The caller reports to the user between
 * two phases.
 *
 *     train_agree          all ranks have the same configuration and data; transport is chosen
 *     train_compile        programs of training and validation
 *     train_check_fit      the memory that the ranks of a process need is available
 *     train_open_dir       rank 0 creates and locks the run folder; a refused run changes no file
 *     train_measure_peak   rank 0: GEMM peak, the reference of mfu
 *     train_start          allocates memory, loads a checkpoint or initial weights
 *     train_steps          steps up to the last one, or until the run is asked to stop
 *     train_end            releases memory, also after an error
 *
 * A phase that fails on one rank returns an error on all of them. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include <stdatomic.h>
#include "plan/profile.h"
#include "train/loop.h"
#include "base/memory_limits.h"
#include "train/run_dir.h"
#include "world/transport.h"

/* A run; shared by the ranks of one process. */
typedef struct {
    /* Set by the caller; equal in all processes of a run except where stated. */
    Err prepared;         /* OK if everything below is set */
    uint64_t config_hash; /* of the keys that must be equal on all ranks */
    JobSettings job;      /* JOB_STEP; the rank is filled in */
    TrainSettings loop;   /* jobs, world, team, peak and trace are filled in */
    TransportSettings transport;
    bool fresh;             /* run.fresh: an earlier run in the folder is renamed */
    int ranks_here;         /* of this process */
    const Trace **trace;    /* [ranks_here]; NULL: no trace is recorded */
    ProfileTarget target;   /* rank 0; the team is filled in */
    const char *peak_cache; /* rank 0: the file of measured peaks; NULL: none */
    MemoryLimits host;      /* memory of this machine; differs between machines */
    int64_t device_bytes;   /* free memory of the devices that this process uses; differs too */
    int devices;            /* their number; 0: ranks compute in host memory */

    /* Set by the phases. */
    _Atomic int64_t needed_bytes;           /* by all ranks of this process */
    _Atomic int64_t needed_on_device_bytes; /* the part in arenas that a device would hold */
    RunDir folder;                          /* rank 0 */
    double device_peak;                     /* rank 0: GEMM flops per second of a device */
    double peak;                            /* rank 0: the share of one rank */
    bool peak_is_new;                       /* it was measured now, not read from peak_cache */
    TrainResult result;
} TrainRun;

/* One rank of the run. */
typedef struct {
    TrainRun *run;
    WorldRank *world;
    Team *team;         /* set before train_compile; the caller closes it */
    Job job, valid_job; /* valid_job: unused without validation */
    Trace trace;
    char transport[TRANSPORT_BYTES]; /* description of the device transport; "": none is used */
    TrainSettings settings;
    TrainLoop *loop;
} TrainRank;

/* Collective over all ranks. ERR_CONFIG if a rank has another configuration or other training
 * data. */
Err train_agree(TrainRank *r);
/* Local, after train_agree. RankSettings.capture_transfers of the rank. */
bool train_captures_transfers(const TrainRank *r);
/* Collective over all ranks. Adds the memory that the rank needs to run->needed_bytes. ERR_CONFIG
 * if run.check_every is set and no two ranks hold copies of the same weights. */
Err train_compile(TrainRank *r);
/* Collective over all ranks. ERR_CONFIG if the ranks of a process need more memory than there is;
 * the message lists settings that fit (plan/fit.h). */
Err train_check_fit(TrainRank *r);
/* Collective over all ranks. ERR_CONFIG if another process trains in the folder. */
Err train_open_dir(TrainRank *r);
/* Collective over all ranks. Sets run->device_peak, peak and peak_is_new on rank 0. */
Err train_measure_peak(TrainRank *r);
/* Collective over all ranks. `out` describes the state that the run starts from. After an error
 * everything is released. */
Err train_start(TrainRank *r, TrainStart *out);
/* Collective over all ranks. Does nothing if train_start returned out->done. */
Err train_steps(TrainRank *r);
/* Local. `err` is the error that ended the rank, or OK; it is returned. Sets run->result. */
Err train_end(TrainRank *r, Err err);
/* Collective over all ranks, after train_end. Writes the events of the ranks of each process to a
 * file. */
Err train_write_trace(TrainRank *r, const char *path);

#endif
