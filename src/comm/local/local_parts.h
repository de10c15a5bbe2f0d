/* local_parts.h -- memory that thread-ranks share; for the files of this folder.
 *
 * A channel is the shared side of the members' MatchChannels (backend.h). Its transfers are matched
 * in order: the collectives of a group, or the sends from one member to another. Its ring has an
 * entry for each of the RING latest transfers:
 *
 *     entry[sequence % RING]   post[0] post[1] ...   one per member, on cache lines of its own;
 *                                                    its member alone writes it: addresses and
 *                                                    counts, then `sequence` as a release
 *                              next, done            tasks claimed; tasks finished
 *
 * After all members have posted, the work of a transfer is split into tasks. Any member that waits
 * or polls claims them: a task reads the memory of all members and writes that of all. So no data
 * passes through a root, no member waits for one that computes, and on few cores the last member to
 * arrive does all the work. The result of a task does not depend on the thread that runs it. When
 * all tasks are finished, every `from` is free and every `to` is complete.
 *
 * A small array is sent eagerly, since it is not worth two rendezvous: each member copies it into
 * its post, and computes its own result from the copies of all. Such a transfer is finished for a
 * member as soon as all have posted.
 *
 * Device memory is moved by queues of the devices: member i alone puts part i into its comm queue,
 * after the events of all members that it reads from (device.c). `done` then counts the members
 * whose part is in a queue, and events show when a part has run.
 *
 * Members leave a transfer in any order. `low` of a member is the first sequence number that it has
 * not left. A transfer may be posted if its number is less than RING beyond every member's low:
 * then no member reads the old entry any more. Until then it stays unposted. */
#ifndef COMM_LOCAL_LOCAL_PARTS_H
#define COMM_LOCAL_LOCAL_PARTS_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/philox.h"
#include "comm/backend.h"
#include "comm/local/local.h"

enum { RING = 8 }; /* transfers of one channel posted at once */
/* Limits of an eager transfer: bytes of one array; bytes of the arrays of all members. */
enum { MAX_EAGER_BYTES = 512, MAX_EAGER_WORK = 16384 };

typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong sequence; /* number of the posted transfer + 1; 0: none */
    TransferSignature signature;
    const char *from; /* points to `eager` for an eager transfer */
    char *to;
    _Alignas(ARENA_ALIGN) int64_t from_count, to_count;
    const int64_t *from_counts, *to_counts; /* of an all-to-all; read by owners of a task only */
    char *eager;                            /* [MAX_EAGER_BYTES] */
    double begun_s;                         /* on the monotonic clock */
    /* For device memory. `ready`: `from` may be read and `to` be written. `done`: the member's part
     * has run. Opened once, owned by the world, and recorded again for each transfer. */
    bool device;
    DeviceEvent *ready, *done;
    int events_of;       /* rank in whose context the events were opened */
    atomic_llong issued; /* as `sequence`, of the latest transfer for which `done` is recorded */
} LocalPost;

typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong next;
    _Alignas(ARENA_ALIGN) atomic_llong done;
    atomic_llong skipped; /* tasks claimed, but not run because the world had failed */
    LocalPost *post;      /* [n] */
} RingEntry;

/* The first transfer of a channel that a member has not completed. */
typedef struct {
    _Alignas(ARENA_ALIGN) atomic_llong at;
} LowWaterMark;

/* An event of some member. The world closes it, after all ranks have left. */
typedef struct LocalEvent {
    struct LocalEvent *next;
    const DeviceRuntime *runtime;
    DeviceEvent *event;
} LocalEvent;

/* A member attaches with its first transfer and ends with comm_group_end. */
typedef enum { NOT_YET, ATTACHED, ENDED } Membership;

typedef struct Channel {
    struct Channel *next; /* in one of the world's lists */
    int purpose;
    int group_n, cap; /* ranks of the group; allocated ranks */
    int32_t *group;
    int from, to; /* ranks of a pair; -1: collectives */
    int n;        /* members: 2 of a pair, the sender first; else the ranks of the group */
    int32_t *member;
    uint8_t *membership; /* [n], under the world's lock */
    LowWaterMark *low;   /* [n] */
    atomic_int unposted; /* begun transfers that wait for a free entry */
    RingEntry entry[RING];
} Channel;

/* Copy of a transfer in flight that other ranks may read at any time, for hang reports. Each member
 * is atomic; the whole may be a moment old. */
typedef struct {
    _Atomic(Channel *) channel; /* NULL: none */
    atomic_llong number, sequence;
    atomic_int kind, instr;
} PublishedTransfer;

/* A rank joins once; RANK_LEFT is final. */
typedef enum { RANK_ABSENT, RANK_JOINED, RANK_LEFT } LocalRankState;

/* One rank, as other ranks see it. */
typedef struct {
    _Alignas(ARENA_ALIGN) atomic_int state;
    atomic_int asleep;
    atomic_int waits; /* slot of the transfer that it waits for; -1: none */
    PublishedTransfer latest, *flight;
    int flights;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    unsigned events; /* under the lock */
} LocalRank;

typedef struct LocalWorld {
    CommWorld base;      /* first: a CommWorld * is a LocalWorld * */
    Arena arena;         /* under the lock */
    bool oversubscribed; /* more ranks than cores: a rank that waits yields its core at once */
    pthread_mutex_t lock;
    Channel *channels, *spare; /* open, oldest first; ended by all members, for reuse */
    LocalRank *rank;           /* [ranks] */
    LocalEvent *events;
    _Alignas(ARENA_ALIGN) atomic_int sleepers;
    _Alignas(ARENA_ALIGN) atomic_int failed; /* set after the two members below */
    int failed_rank;
    char failed_text[COMM_TEXT_BYTES];
} LocalWorld;

/* One rank as a member of a channel; written by that rank alone. */
typedef struct ChannelMember {
    struct ChannelMember *next; /* in the list of unused ones */
    Channel *channel;
    int place;
    int64_t low, free_below; /* first number not left; numbers below it have a free entry */
    uint32_t left;           /* bit (sequence % RING): left, while an earlier one is not */
} ChannelMember;

/* UNPOSTED: waits for a ring entry or for its hostile delay. WAITING: posted, for the other
 * members. MOVING: all have posted, tasks may be claimed. DRAINING: all tasks are claimed, some
 * still run. FINISHED: also the state of a free slot. */
typedef enum { FINISHED, UNPOSTED, WAITING, MOVING, DRAINING } LocalTransferState;

/* The backend's state of a slot, in addition to its PendingTransfer. */
typedef struct {
    LocalTransferState state;
    ChannelMember *member;
    bool eager, device;
    bool by_transport;            /* device memory that the device transport moves */
    int seen;                     /* members, counted from the first, whose post has been seen */
    int64_t tasks, task_elements; /* number of tasks; elements of one task */
    void *staged_to, *staged;     /* hostile: result until the wait; copy of an in-place source */
    bool late, held;              /* hostile: completes at the wait; holds staging memory */
    double not_before_s;          /* hostile: earliest time of its post */
} LocalFlight;

typedef struct {
    LocalWorld *world;
    bool own_world;
    LocalRank *self;
    LocalFlight *flight; /* by slot */
    int active;          /* flights that are not finished */
    ChannelMember *spare;
    const char **source; /* [ranks], for folds */
    Arena staging;
    int n_staged;
    Random random;
} LocalComm;

/* local.c. Local. comm_join of a thread. */
Err world_join(CommWorld *base, Arena *a, const CommSettings *set, Comm **out);

/* world.c. Local. Attaches to the channel of a transfer; creates it if it is new. */
Err channel_attach(LocalWorld *w, const Transfer *t, int rank, Channel **out, int *place);
void channel_end(LocalWorld *w, Channel *c, int place);
/* Local. Wakes sleeping members. Call it after a sequentially consistent store of the state that
 * they wait for. */
void channel_wake(LocalWorld *w, const Channel *c);
/* Local. Records the first failure and wakes all ranks; later failures are ignored. */
void world_fail(LocalWorld *w, int rank, const char *text);
static inline bool world_failed(LocalWorld *w) { return atomic_load(&w->failed) != 0; }
/* Local. ERR_PEER with the rank and the message of the first failure. */
Err world_error(LocalWorld *w);

/* advance.c. Local. Posts the transfer if its ring entry is free. */
Err post_when_free(Comm *c, int slot, bool *posted);
/* Local. Takes a transfer to its next state if possible. Sets *moved on progress and never clears
 * it. */
Err advance(Comm *c, int slot, bool *moved);
Err advance_all(Comm *c, bool *moved);
/* Local. True if all members have posted; *seen: as in LocalFlight. */
bool all_posted(const LocalFlight *f, int64_t sequence, int *seen);
/* Local. The world has failed: cancels all transfers. Returns when no other rank accesses memory
 * that this rank has posted. */
void cancel_all(Comm *c);

/* wait.c. Local. OK when the transfer is finished; ERR_PEER without a message if the world
 * failed. */
Err wait_over(Comm *c, int slot);

/* move.c. Local. All have posted: compares their signatures. Returns the name of a difference and
 * the member that has it; NULL: all are equal. */
const char *move_differs(const Comm *c, int slot, int *place);
Err move_mismatch(const Comm *c, int slot, int place, const char *what);
/* Local. Splits the work into tasks. */
void move_split(Comm *c, int slot);
/* Local. Runs one claimed task. */
Err move_task(Comm *c, int slot, int64_t task);
/* Local. Computes this member's result of an eager transfer. */
void move_eager(Comm *c, int slot);

/* device.c. Local. Before the post: records in the compute queue that the rank's memory is
 * ready. */
Err device_ready(Comm *c, int slot, LocalPost *mine);
/* Local. All have posted: puts this member's part into its comm queue. */
Err device_part(Comm *c, int slot);
/* Local. At the wait: the compute queue waits for the parts of all members. */
Err device_deliver(Comm *c, int slot);
/* Local. The world has failed: returns when no part in a queue runs any more. */
void device_settle(Comm *c, int slot);

/* hostile.c. Local. Chooses early or late, and fills `to` with 0xFF. */
Err hostile_begin(Comm *c, int slot);
/* Local. At the wait: copies a late result to `to`. */
void hostile_deliver(Comm *c, int slot);

/* report.c. Local. Fails the world with a report of which rank waits for which. */
Err report_hang(Comm *c, int slot, double waited_s);
/* Local. A member that has left the world without posting; -1: there is none. */
int report_departed(Comm *c, int slot);

static inline RingEntry *entry_of(const LocalFlight *f, int64_t sequence)
{
    return &f->member->channel->entry[sequence % RING];
}

#endif
