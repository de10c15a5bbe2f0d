/* fit.h -- memory-fit advisor: compares the memory that a run needs with the memory that is
 * available, before anything is allocated, and finds settings that fit.
 *
 *     the run needs 163.2 GiB of the GPU's memory, 138.9 GiB are available; settings that fit, the
 *     cheapest first: parallel.recompute=selective (121.0 GiB); batch.micro=16 (98.4 GiB); ...
 *
 * Options are not estimated: each one is compiled as a run with these settings would be. */
#ifndef PLAN_FIT_H
#define PLAN_FIT_H

#include "job/job.h"

typedef struct {
    const JobSettings *job; /* JOB_STEP, of any rank */
    int64_t global;         /* batch.global: sequences of a step */
    bool validates;         /* the run has a validation program too */
    bool on_device;         /* count device memory: all arenas but ARENA_HOST */
    int ranks;              /* of this process */
    int64_t needed_bytes;   /* by all ranks of this process */
    int64_t available_bytes;
    const char *memory; /* for the message: "of this machine's memory" */
    Arena *temp;
} FitRequest;

/* A change of settings that makes the run fit. */
typedef struct {
    const char *recompute; /* value of parallel.recompute; NULL: unchanged */
    int zero;              /* value of parallel.zero; -1: unchanged */
    int64_t micro;         /* value of batch.micro; 0: unchanged */
    int64_t bytes;         /* needed by all ranks of this process */
} FitOption;
enum { MAX_FIT_OPTIONS = 3 };

/* Local. Bytes of a rank's arenas, including those of validation that are not shared with
 * training. */
int64_t fit_bytes(const Job *job, const Job *valid, bool on_device);
/* Local. ERR_CONFIG unless needed_bytes <= available_bytes; the message lists the options. */
Err fit_check(const FitRequest *r);

#endif
