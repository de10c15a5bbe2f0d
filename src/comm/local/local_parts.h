/* local_parts.h -- what thread-ranks share; for the files of this folder.
 *
 * A channel is one stream of transfers that are matched in order: the collectives of a group, or
 * what one member sends to another. Its ring has room for the RING latest transfers:
 *
 *     op[sequence % RING]   post[0]  post[1] ...   each written by its member alone, on lines of
 * its own: addresses, counts, then `sequence`, released next     done          units of work:
 * claimed; finished
 *
 * Once all have posted, the work of a transfer is cut into units, and whoever is present claims
 * them: a unit reads from all members' memory and writes into all. So nothing goes through a root,
 * no member waits for one that computes, and on few cores the last to arrive does it all. A unit
 * does not depend on who runs it. When all are done, every `from` is free and every `to` is whole.
 *
 * A small array is not worth two meetings: its member copies it into `room` beside the post, and
 * each makes its own result from those. So it is over for a member as soon as all have posted.
 *
 * Memory of a device is moved by its own queues: member i puts part i into its comm queue, behind
 * the events of all that it reads from, and it alone (device.c). Then `done` counts members whose
 * part is in a queue, and events say when it has run.
 *
 * Members leave in any order. `low` of a member is the first sequence number it has not left; a
 * transfer may be posted when it is less than RING beyond every member's low: then nobody reads the
 * entry any more. Until then its begin rests, unposted. */
#ifndef COMM_LOCAL_LOCAL_PARTS_H
#define COMM_LOCAL_LOCAL_PARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/philox.h"
#include "comm/backend.h"
#include "comm/local/local.h"

enum { RING = 8 }; /* transfers of one channel posted at once */
enum { MAX_EAGER_BYTES = 512, MAX_EAGER_WORK = 16384 }; /* of an array; of those of all members */

typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong sequence; /* posted: the transfer's, plus 1 */
    TransferSignature signature;
    const char *from; /* in `room` when small */
    char *to;
    _Alignas(ARENA_ALIGN) int64_t from_count, to_count;
    const int64_t *from_counts, *to_counts; /* of an all-to-all; read by holders of a unit only */
    char *eager;                            /* [MAX_EAGER_BYTES] */
    /* Of memory on a device: `from` may be read and `to` be written; the member's part is done.
     * Opened once, and the world's; recorded anew for each transfer. */
    bool device;
    DeviceEvent *ready, *done;
    int events_of;       /* the rank whose context they are of */
    atomic_llong issued; /* as `sequence`: `done` is recorded */
} LocalPost;

typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong next;
    _Alignas(ARENA_ALIGN) atomic_llong done;
    atomic_llong skipped; /* claimed, but the world had failed */
    LocalPost *post;      /* [n] */
} RingEntry;

typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong at;
} Low;

/* An event of some member's, for who comes last to close. */
typedef struct LocalEvent {
    struct LocalEvent *next;
    const DeviceRuntime *runtime;
    DeviceEvent *event;
} LocalEvent;

typedef enum { NOT_YET, ATTACHED, ENDED } Membership;

typedef struct Channel {
    struct Channel *next; /* in one of the world's lists */
    int purpose;
    int group_n, cap; /* ranks of the group; room for ranks */
    int32_t *group;
    int from, to; /* ranks of a pair; -1: collectives */
    int n;        /* members: 2 of a pair, sender first; else those of the group */
    int32_t *member;
    uint8_t *membership; /* [n], under the world's lock */
    Low *low;            /* [n] */
    atomic_int unposted; /* begins that wait for room in the ring */
    RingEntry entry[RING];
} Channel;

/* What others may see of a transfer in flight, for the report on a hang. */
typedef struct {
    _Atomic(Channel *) channel; /* NULL: none */
    atomic_llong number, sequence;
    atomic_int kind, instr;
} PublishedTransfer;

typedef enum { RANK_ABSENT, RANK_JOINED, RANK_LEFT } LocalRankState;

/* One rank as the others see it. */
typedef struct {
    _Alignas(ARENA_ALIGN) atomic_int state;
    atomic_int asleep;
    atomic_int waits; /* slot of the transfer that it waits for; -1 */
    PublishedTransfer latest, *flight;
    int flights;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    unsigned events; /* under the lock */
} LocalRank;

typedef struct LocalWorld {
    CommWorld base;      /* first: a CommWorld * is a LocalWorld * */
    Arena arena;         /* under the lock */
    bool oversubscribed; /* more ranks than cores: who waits gives its core away at once */
    pthread_mutex_t lock;
    Channel *channels, *spare; /* in use, oldest first; ended */
    LocalRank *rank;           /* [ranks] */
    LocalEvent *events;
    _Alignas(ARENA_ALIGN) atomic_int sleepers;
    _Alignas(ARENA_ALIGN) atomic_int failed; /* set last */
    int failed_rank;
    char failed_text[COMM_TEXT_BYTES];
} LocalWorld;

/* One rank's hold on a channel. */
typedef struct ChannelMember {
    struct ChannelMember *next; /* in the list of spare ones */
    Channel *channel;
    int place;
    int64_t low, room; /* first not left; posts below are known to have room */
    uint32_t left;     /* bit (sequence % RING): left, but not yet below `low` */
} ChannelMember;

/* A begun transfer, beside its Pending. */
typedef enum { FINISHED, UNPOSTED, WAITING, MOVING, DRAINING } LocalTransferState;
typedef struct {
    LocalTransferState state;
    ChannelMember *member;
    bool eager, device;
    bool by_transport;            /* memory of a device that the comm's mover moves */
    int seen;                     /* members, from the first, whose post was seen */
    int64_t tasks, task_elements; /* how many; elements of one */
    void *staged_to, *staged; /* hostile: where the result rests until the wait; source, in place */
    bool late, held;          /* hostile: by its coin; holds staging memory */
    double not_before_s;      /* hostile: of its post */
} LocalFlight;

typedef struct {
    LocalWorld *world;
    bool own_world;
    LocalRank *self;
    LocalFlight *flight; /* by slot */
    int active;          /* flights that are not over */
    ChannelMember *spare;
    const char **source; /* [ranks], for folds */
    Arena staging;
    int n_staged;
    Random random;
} LocalComm;

/* local.c. Local. comm_join of a thread. */
Err world_join(CommWorld *base, Arena *a, const CommSettings *set, Comm **out);

/* world.c. Local. The channel of a transfer, attached to; made when it is new. */
Err channel_attach(LocalWorld *w, const Transfer *t, int rank, Channel **out, int *place);
void channel_end(LocalWorld *w, Channel *c, int place);
/* Wakes members that sleep; after a change that they may wait for, made sequentially consistent. */
void channel_wake(LocalWorld *w, const Channel *c);
/* The first failure counts. */
void world_fail(LocalWorld *w, int rank, const char *text);
static inline bool world_failed(LocalWorld *w) { return atomic_load(&w->failed) != 0; }
/* ERR_PEER with the first failure's rank and message. */
Err world_error(LocalWorld *w);

/* steps.c. Local. Posts, when there is room. */
Err post_when_room(Comm *c, int slot, bool *posted);
/* One step on, if it can be made; *moved tells, and is not cleared. */
Err advance(Comm *c, int slot, bool *moved);
Err advance_all(Comm *c, bool *moved);
bool all_posted(const LocalFlight *f, int64_t sequence, int *seen);
/* The world has failed. Returns when nobody touches what this rank has posted. */
void cancel_all(Comm *c);

/* wait.c. Local. OK when the transfer is over; ERR_PEER without a message when the world failed. */
Err wait_over(Comm *c, int slot);

/* move.c. Local. All have posted: in what do they not mean the same transfer, and which member?
 * NULL: they do. */
const char *move_differs(const Comm *c, int slot, int *place);
Err move_mismatch(const Comm *c, int slot, int place, const char *what);
/* Cuts the work into units. */
void move_split(Comm *c, int slot);
/* Does one unit, which was claimed. */
Err move_task(Comm *c, int slot, int64_t task);
/* Of a small one: this member's result. */
void move_eager(Comm *c, int slot);

/* device.c. Local. Before it is posted: records that the rank's memory is ready. */
Err device_ready(Comm *c, int slot, LocalPost *mine);
/* All have posted: this member's part into its comm queue. */
Err device_part(Comm *c, int slot);
/* At its wait: the compute queue goes on when the parts of all have run. */
Err device_deliver(Comm *c, int slot);
/* The world has failed: returns when no part that was put into a queue runs any more. */
void device_settle(Comm *c, int slot);

/* hostile.c. Local. */
Err hostile_begin(Comm *c, int slot);
void hostile_deliver(Comm *c, int slot);

/* report.c. Local. Who waits for whom, as this rank's wait for `slot` sees it. */
Err report_hang(Comm *c, int slot, double waited_s);
/* A member that has left the world and did not post; -1: there is none. */
int report_departed(Comm *c, int slot);

static inline RingEntry *entry_of(const LocalFlight *f, int64_t sequence)
{
    return &f->member->channel->entry[sequence % RING];
}

#endif
