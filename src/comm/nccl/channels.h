/* channels.h -- how NCCL moves memory of GPUs between ranks; for the files of this folder.
 *
 * A way is a communicator of NCCL and a queue of the device of its own. There is one for each stream
 * of a comm's transfers: the collectives of a (group, purpose), and what one member sends another.
 *
 *     rank 0   compute | a | ready ..................... wait done | b
 *              way     |     wait ready | all-reduce | done
 *     rank 1   way     |     wait ready | all-reduce | done
 *
 * Order. On one way every member launches the same transfers in the same order: each has a number in
 * its stream, members meet over the comm's backend before they launch, which compares what they mean,
 * and a way launches number n after n - 1 whatever came first. Between ways there is no order: each
 * has its queue, so none waits behind another, and nothing is launched before all its members have
 * begun it, so no kernel waits on the GPU for a rank that computes. This needs room on a GPU for the
 * kernels of all ways that are under way at once (NCCL_MAX_CTAS makes them smaller), and
 * NCCL_LAUNCH_ORDER_IMPLICIT must not be set.
 *
 * Opening a way needs all its members at once. So comm_prepare is told all transfers of a program
 * before its first step, and opens ways in the one order that all ranks sort them into.
 *
 * Nothing blocks the host: communicators do not block (blocking=0). While NCCL says "in progress"
 * the kernel may not be in the queue yet; only then `done` is recorded, and the next one launched.
 *
 * Faults. NCCL is asked for errors between instructions and while the host waits. One that it tells
 * of, or another rank's failure, ends all communicators by ncclCommAbort: kernels that wait for a
 * rank that is gone end, queues run dry, nobody hangs.
 *
 * Maxima are gathered and folded by the device: NCCL's pass over a NaN, ours do not. */
#ifndef COMM_NCCL_CHANNELS_H
#define COMM_NCCL_CHANNELS_H

#include "comm/nccl/entry.h"

enum { LAUNCH_RING = 8 }; /* launches of a way that are remembered */

/* One that was put into the queue of a way. */
typedef struct {
    Transfer t; /* its name: kind, group, ranks, instruction */
    int64_t sequence;
    double at_s;
    DeviceEvent *done;
    bool recorded; /* `done` is */
} NcclLaunch;

typedef struct NcclChannel {
    struct NcclChannel *next;
    Stream *stream;
    NcclComm *comm; /* NULL after an abort */
    DeviceQueue *queue;
    void *native;          /* the queue, as NCCL knows it */
    int64_t next_sequence; /* to be launched */
    int busy;              /* slot of what is launched and in progress; -1 */
    int n, me;             /* members; of a pair the sender, then the receiver */
    void *scratch;         /* of maxima: the parts of all */
    size_t scratch_bytes;
    NcclLaunch launch[LAUNCH_RING]; /* by sequence */
} NcclChannel;

typedef struct {
    NcclApi api;
    NcclChannel *channels, *spare;
    DeviceEvent **ready; /* [in_flight] */
} NcclState;

/* What names a stream, the same on all its members. */
typedef struct {
    const Transfer *t;
    int32_t pair[2]; /* ranks of a pair, sender first; -1 -1: collectives */
} NcclChannelKey;

/* ways.c. Local. */
NcclChannelKey nccl_channel_key(const Transfer *t, int rank);
/* Negative, 0, positive: the order in which ways are opened. */
int nccl_channel_key_compare(const NcclChannelKey *a, const NcclChannelKey *b);
RankList nccl_channel_members(const NcclChannelKey *name);
/* Collective over its members. */
Err nccl_channel_open(Comm *c, const NcclChannelKey *name, NcclChannel **out);
/* Local. The transfer's way; NULL: it is not open. */
NcclChannel *nccl_channel_find(const Comm *c, const Transfer *t);
/* Waits for its queue; after an abort that is empty soon. */
void nccl_channel_close(Comm *c, NcclChannel *ch);

/* launch.c. Local. When it is begun: scratch memory, if it needs some. Moves other transfers on. */
Err launch_reserve(Comm *c, int slot, NcclChannel *ch);
/* Puts the transfer into the way's queue; *in_progress: not yet all of it. */
Err launch(Comm *c, int slot, NcclChannel *ch, bool *in_progress);
/* What follows when it is there: maxima are folded. */
Err launch_finish(Comm *c, int slot, NcclChannel *ch);

/* faults.c. Local. What NCCL said to a call, or of a communicator; OK for "in progress". */
Err nccl_ok(const Comm *c, const NcclChannel *ch, NcclResult result, const char *call);
/* The oldest launch of the way that is not over; NULL: all are. */
const NcclLaunch *nccl_channel_oldest(const Comm *c, const NcclChannel *ch);
Err nccl_poll(Comm *c);
Err nccl_overdue(Comm *c, double waited_s);
void nccl_abort(Comm *c);

extern const DeviceTransport nccl_transport;

static inline const NcclApi *api_of(const Comm *c)
{
    return &((const NcclState *)c->transport_state)->api;
}

#endif
