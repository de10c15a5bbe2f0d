/* standin.h -- a libnccl for machines without GPUs: the functions of comm/nccl/api.h, on the memory and
 * the queues of the shadow device (support/shadow.h). Ranks are threads or processes.
 *
 * A communicator is a file in shared memory. What is launched goes into a queue, and when its turn
 * comes each member lays open there what it calls, and what it gives; when all have, they are compared
 * and each takes what it gets. Sums are left folds in the order of ranks, so they are those of `local`
 * to the bit.
 *
 * Like NCCL it is in no hurry: communicators are in progress for a while when they are opened and when
 * something is launched, and until then nothing is in the queue. Unlike NCCL it minds: members that do
 * not call the same, in the same order; memory that is not the rank's own on its device; calls on a
 * communicator that is in progress or was aborted; groups that are not balanced; maxima of floats,
 * which NCCL takes over NaNs. All that is an error of the communicator, and is counted. */
#ifndef TESTS_NCCL_STANDIN_H
#define TESTS_NCCL_STANDIN_H

#include <stdint.h>

typedef enum {
    FAULT_NONE,
    FAULT_ASYNC, /* an error of the communicator, some time after the launch */
    FAULT_NEVER, /* the GPU of this rank never comes to it */
    FAULT_CALL,  /* the launch is refused */
    FAULT_OPEN   /* communicators cannot be opened */
} StandinWhat;

typedef struct {
    StandinWhat what;
    int64_t after; /* launches of this thread that go well before */
} StandinFault;

typedef struct {
    int64_t opened, open, aborted; /* communicators of this process: ever, now; ended by abort */
    int64_t launches, grouped;     /* batches; those of several calls */
    int64_t in_progress;           /* of both that were, for a while */
    int64_t misuses;
    char misuse[256]; /* the first, in words */
} StandinCount;

/* Local. For what this thread launches from now on. */
typedef void StandinSetFault(StandinFault fault); /* standin_fault */
/* Local. Since the last time. */
typedef StandinCount StandinTakeCount(void); /* standin_count */
/* Local. What ncclGetVersion says; 22809 at first. */
typedef void StandinSetVersion(int version); /* standin_version */

#endif
