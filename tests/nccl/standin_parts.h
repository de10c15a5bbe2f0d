/* standin_parts.h -- between the files of the stand-in: what members share (standin_meet.c), and the
 * functions of NCCL (standin.c). */
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
    uint64_t at; /* of what it gives, in the member's memory */
} NcclCall;

/* One batch of calls, as its members lay it open. */
typedef struct {
    atomic_llong published[MAX_RANKS], consumed[MAX_RANKS]; /* its number, from 1 */
    int32_t n_calls[MAX_RANKS];
    NcclCall call[MAX_RANKS][MAX_CALLS];
} Meeting;

/* The file; behind it is what members give, [RING][ranks][GIVEN_BYTES]. */
typedef struct {
    atomic_int joined[MAX_RANKS];
    atomic_int failed; /* 1: the text is being written, 2: is there */
    char text[TEXT_BYTES];
    Meeting meeting[RING];
} Shared;

/* What one group of calls puts into a queue. */
typedef struct Batch {
    NcclComm *comm;
    DeviceQueue *queue;
    int64_t number; /* in its communicator, from 1 */
    int n;
    NcclCall call[MAX_CALLS];
    const void *from[MAX_CALLS];
    void *to[MAX_CALLS];
    bool published, never, breaks; /* breaks: when it is in the queue */
} Batch;

struct NcclComm {
    struct NcclComm *next; /* all that were ever opened: a queue may still hold work of theirs */
    Shared *shared;
    char name[64];
    int n, rank;
    int64_t launched;
    Batch *waiting; /* launched, and not in the queue yet */
    int polls;      /* how often it is still in progress */
    bool in, ended; /* all members have joined; destroyed or aborted */
    atomic_bool aborted;
    atomic_int error; /* NcclResult of this member alone */
    char text[TEXT_BYTES];
};

/* standin_meet.c. Local. Joins the file of an id. */
bool meet_open(NcclComm *c);
void meet_close(NcclComm *c);
bool meet_all_in(const NcclComm *c);
/* Of the queue, under its lock: goes on with a batch; true when it is over. */
bool meet_try(void *batch);
/* All members learn that one of them did something wrong. */
void meet_fail(NcclComm *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t type_bytes(int32_t type);

#endif
