/* standin_parts.h -- private to the files of the stand-in: the memory that members share
 * (standin_meet.c) and the functions of NCCL (standin.c). */
#ifndef TESTS_NCCL_STANDIN_PARTS_H
#define TESTS_NCCL_STANDIN_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include "comm/nccl/api.h"
#include "nccl/standin.h"
#include "support/shadow.h"

enum { MAX_RANKS = 16, MAX_CALLS = 64, RING = 4, GIVEN_BYTES = 4 << 20, TEXT_BYTES = 512 };

typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECV } CallKind;

typedef struct {
    int32_t kind, type, op, root; /* root: or the peer of a send or receive */
    uint64_t count;
    uint64_t at; /* offset of its input in the member's part of the file */
} NcclCall;

/* One batch of calls, as its members publish it. */
typedef struct {
    atomic_llong published[MAX_RANKS], consumed[MAX_RANKS]; /* its number, from 1 */
    int32_t n_calls[MAX_RANKS];
    NcclCall call[MAX_RANKS][MAX_CALLS];
} Meeting;

/* The file; the inputs of members follow it, [RING][ranks][GIVEN_BYTES]. */
typedef struct {
    atomic_int joined[MAX_RANKS];
    atomic_int failed; /* 1: the text is being written, 2: it is complete */
    char text[TEXT_BYTES];
    Meeting meeting[RING];
} Shared;

/* One group of calls in a queue. */
typedef struct Batch {
    NcclComm *comm;
    DeviceQueue *queue;
    int64_t number; /* in its communicator, from 1 */
    int n;
    NcclCall call[MAX_CALLS];
    const void *from[MAX_CALLS];
    void *to[MAX_CALLS];
    bool published, never, breaks; /* breaks: fails when it runs */
} Batch;

/* A batch in a graph: each launch of the graph runs a copy with the next number. */
typedef struct GraphBatch {
    struct GraphBatch *next;
    Batch *of, *now; /* now: NULL between launches */
} GraphBatch;

struct NcclComm {
    struct NcclComm
        *next; /* in the list of all ever opened: a queue may still hold their batches */
    Shared *shared;
    char name[64];
    int n, rank;
    _Atomic int64_t launched;
    int64_t graphs; /* launches in graphs that are not closed */
    GraphBatch *batches;
    Batch *waiting; /* launched, and not in the queue yet */
    int polls;      /* number of polls for which it is still in progress */
    bool in, ended; /* all members have joined; destroyed or aborted */
    atomic_bool aborted;
    atomic_int error; /* NcclResult of this member only */
    char text[TEXT_BYTES];
};

/* standin_meet.c. Local. Joins the file of an id. */
bool meet_open(NcclComm *c);
void meet_close(NcclComm *c);
bool meet_all_in(const NcclComm *c);
/* Called by the queue under its lock: advances a batch; true when it is done. */
bool meet_try(void *batch);
/* The same for a GraphBatch. */
bool meet_try_again(void *batch);
/* Records a misuse of one member as an error of all. */
void meet_fail(NcclComm *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t type_bytes(int32_t type);

#endif
