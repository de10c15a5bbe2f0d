/* standin.h -- a libnccl for machines without GPUs: the functions of comm/nccl/api.h, on the memory
 * and the queues of the shadow device (support/shadow.h). Ranks are threads or processes.
 *
 * A communicator is a file in shared memory. A launch goes into a queue. When the queue reaches it,
 * each member publishes its calls and its input in the file; after all have, the calls are compared
 * and each member copies its output. Sums are left folds in the order of ranks, so they equal those
 * of `local` to the bit.
 *
 * Like NCCL it is asynchronous: communicators are in progress for a while after they are opened and
 * after a launch, and until then nothing is in the queue. Unlike NCCL it detects misuse: members
 * that do not make the same calls in the same order; memory that is not the rank's own on its
 * device; calls on a communicator that is in progress or was aborted; unbalanced groups; maxima of
 * floats, for which NCCL ignores NaNs; the end of a communicator while a graph has launches of it,
 * for which NCCL waits for ever. Each is an error of the communicator, and is counted. */
#ifndef TESTS_NCCL_STANDIN_H
#define TESTS_NCCL_STANDIN_H

#include <stdint.h>

typedef enum {
    FAULT_NONE,
    FAULT_ASYNC, /* an error of the communicator, some time after the launch */
    FAULT_NEVER, /* the GPU of this rank never runs the launch */
    FAULT_CALL,  /* the launch is refused */
    FAULT_OPEN   /* communicators cannot be opened */
} StandinWhat;

typedef struct {
    StandinWhat what;
    int64_t after; /* launches of this thread that succeed before it */
} StandinFault;

typedef struct {
    /* Communicators of this process: ever opened; open now; aborted. */
    int64_t opened, open, aborted;
    int64_t launches, grouped; /* batches; those of several calls */
    int64_t in_progress;       /* openings and launches that were in progress for a while */
    int64_t misuses;
    char misuse[256]; /* message of the first misuse */
} StandinCount;

/* Local. Plants a fault for later launches of this thread. */
typedef void StandinSetFault(StandinFault fault); /* standin_fault */
/* Local. Counts since the last call. */
typedef StandinCount StandinTakeCount(void); /* standin_count */
/* Local. Sets the version that ncclGetVersion returns; 22809 at first. */
typedef void StandinSetVersion(int version); /* standin_version */

#endif
