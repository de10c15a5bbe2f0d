/* channels.h -- NCCL communicators with their queues; for the files of this folder.
 *
 * A channel is an NCCL communicator with a queue (CUDA stream) of its own. There is one for each
 * MatchChannel of a comm (backend.h): the collectives of a (group, purpose), or the sends from one
 * member to another.
 *
 *     rank 0   compute | a | ready ..................... wait done | b
 *              channel |     wait ready | all-reduce | done
 *     rank 1   channel |     wait ready | all-reduce | done
 *
 * Order. On one channel every member launches the same transfers in the same order. Each transfer
 * has a sequence number in its channel, the comm's backend matches the members and compares their
 * signatures before the launch, and a channel launches them in that order, whatever was begun
 * first. Transfers of host memory in the same group, which the backend moves, have sequence numbers
 * too; launches are counted without them. Channels are not ordered among each other: each has its
 * own queue, so none waits behind another. Nothing is launched before all members have begun it, so
 * no kernel occupies the GPU while it waits for a rank that computes; but for launches of graphs,
 * which repeat it without the comm (comm_capture). The kernels of all channels
 * in flight must fit on a GPU at once (NCCL_MAX_CTAS makes them smaller), and
 * NCCL_LAUNCH_ORDER_IMPLICIT must not be set.
 *
 * Opening a channel needs all its members at once. So comm_prepare takes all transfers of a program
 * before the first step, and opens their channels in the order of channel_key_compare, which
 * is the same on all ranks.
 *
 * The host never blocks: communicators are opened with blocking=0. While NCCL returns
 * ncclInProgress the kernel may not be in the queue yet. `done` is recorded, and the next transfer
 * launched, only after that.
 *
 * Faults. Asynchronous errors of NCCL are polled between instructions and while the host waits.
 * Such an error, or the failure of another rank, ends all communicators by ncclCommAbort: kernels
 * that wait for a missing rank end, queues drain, and no rank hangs.
 *
 * Maxima are gathered by NCCL and folded by the device: ncclMax ignores a NaN, our folds return
 * it. */
#ifndef COMM_NCCL_CHANNELS_H
#define COMM_NCCL_CHANNELS_H

#include "comm/channel_key.h"
#include "comm/nccl/entry.h"

enum { LAUNCH_RING = 8 }; /* latest launches of a channel that are kept */
/* Queues of a process that run at once (CUDA_DEVICE_MAX_CONNECTIONS), and multiprocessors of each
 * kernel where ranks share a GPU: all must be resident, or they wait for those that are not. */
enum { MAX_CONNECTIONS = 32, SHARED_CTAS = 3 };

/* A transfer that was put into the queue of a channel. */
typedef struct {
    Transfer t; /* for messages: kind, group, ranks, instruction */
    int64_t sequence;
    double at_s;
    DeviceEvent *done;
    bool recorded; /* `done` is recorded in the queue */
    bool captured; /* in a graph, where `done` cannot be queried */
    int timed;     /* its place in NcclTimes; -1: none */
} NcclLaunch;

typedef struct NcclChannel {
    struct NcclChannel *next;
    MatchChannel *match;
    NcclComm *comm; /* NULL after an abort */
    DeviceQueue *queue;
    void *native;        /* the queue as a cudaStream_t */
    int64_t next_launch; /* PendingTransfer.launch of the transfer to launch next */
    int busy;            /* slot whose launch NCCL reports in progress; -1: none */
    int n, me;           /* members; a pair is the sender, then the receiver */
    void *scratch;       /* for maxima: the parts of all members; to connect: a byte of each */
    size_t scratch_bytes;
    NcclLaunch launch[LAUNCH_RING]; /* by PendingTransfer.launch */
} NcclChannel;

/* Device times of the transfers of a step: times.c. */
typedef struct {
    DeviceTimestamps
        *at;         /* NULL: none are taken. [0] the step's start, then two of each transfer */
    int cap, n;      /* transfers */
    int64_t *number; /* [cap] of their records */
    double *seconds; /* [2 * cap + 2] */
} NcclTimes;

typedef struct {
    NcclApi api;
    NcclChannel *channels, *spare;
    DeviceEvent **ready; /* [in_flight] */
    NcclTimes times;
} NcclState;

/* channels.c. Collective over its members: opens queue and communicator. */
Err nccl_channel_open(Comm *c, const ChannelKey *name, NcclChannel **out);
/* Collective over its members, after nccl_channel_open. Sends a byte between each two, from and to
 * the scratch memory. */
Err nccl_channel_connect(Comm *c, NcclChannel *ch, const ChannelKey *name);
/* Local. The channel of a transfer; NULL: it is not open. */
NcclChannel *nccl_channel_find(const Comm *c, const Transfer *t);
/* Local. Waits for the queue, which drains soon after an abort, and frees the channel for reuse. */
void nccl_channel_close(Comm *c, NcclChannel *ch);

/* prepare.c. Local. Ranks of this process that share this rank's GPU; 1: none do. */
int nccl_ranks_here(const Comm *c);
/* The function of the DeviceTransport. */
Err nccl_prepare(Comm *c, const Transfer *t, int n);
/* transport.c. Local. The event of a slot. */
Err nccl_open_event(Comm *c, int slot);

/* launch.c. Local. Scratch memory of at least `bytes`; may wait for the queue. */
Err nccl_reserve(Comm *c, NcclChannel *ch, size_t bytes);
/* Local. Allocates scratch memory for a maximum: in comm_prepare, since an allocation
 * within a step waits for the transfers of other ranks on the device; at begin for transfers larger
 * than those prepared. May wait for the queue, and then advances other transfers. */
Err launch_reserve(Comm *c, const Transfer *t, NcclChannel *ch);
/* Local. Puts the transfer into the channel's queue; *in_progress: NCCL has not finished that
 * yet. */
Err launch(Comm *c, int slot, NcclChannel *ch, bool *in_progress);
/* Local. After the launch: puts the fold of a maximum into the queue. */
Err launch_finish(Comm *c, int slot, NcclChannel *ch);

/* times.c. Local. Around a launch, in the channel's queue. */
Err times_before(Comm *c, NcclChannel *ch, NcclLaunch *l, int64_t number);
Err times_after(Comm *c, NcclChannel *ch, const NcclLaunch *l);
/* Local. The functions of the DeviceTransport. */
Err times_open(Comm *c, int n);
Err times_begin(Comm *c);
Err times_end(Comm *c);
void times_close(Comm *c);

/* faults.c. Local. ERR_PEER for an error that NCCL returned from `call`; OK for ncclSuccess and
 * ncclInProgress. */
Err nccl_ok(const Comm *c, const NcclChannel *ch, NcclResult result, const char *call);
/* Local. poll, overdue and abort of the DeviceTransport. */
Err nccl_poll(Comm *c);
Err nccl_overdue(Comm *c, double waited_s);
void nccl_abort(Comm *c);

extern const DeviceTransport nccl_transport;

static inline const NcclApi *api_of(const Comm *c)
{
    return &((const NcclState *)c->transport_state)->api;
}

#endif
