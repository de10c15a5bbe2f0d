/* backend.h -- internal interface of comm: common state, backend vtable, device transport.
 *
 *     comm_begin   check the transfer -> find its group -> record it -> table->begin
 *     comm_wait    check the ticket -> table->wait -> sleep until it is due -> free the slot
 *
 * A backend (comm/local, comm/mpi) moves bytes and reports, by comm_progress, when a transfer was
 * matched and when it was done. Work common to all backends is done once, before or after the
 * vtable call.
 *
 * Device memory may be moved by a device transport (comm/nccl) instead of the backend. The backend
 * still does the rendezvous: it matches the members' transfers, compares their signatures and
 * reports members that do not arrive. After the match each member launches its share of the
 * transfer:
 *
 *     begin     transport->begin    records an event in the compute queue: the inputs are ready
 *     matched   transport->launch   retried until the share is enqueued; the transfer is then DONE
 *                                   (enqueued, not complete on the device)
 *     wait      transport->wait     the compute queue waits for the share
 *
 * All functions run on the one thread of the rank. Memory that other ranks access at the same time
 * belongs to a backend, and its header names the owner and the lock of each field. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

/* POSTED: begun here. MATCHED: all members have begun it, with equal signatures. DONE: `to` may be
 * read and `from` be written; for device memory: this rank's share is enqueued on the device. */
typedef enum { POSTED, MATCHED, DONE } TransferProgress;

/* A transfer in flight. `slot`, here and below, is its index in Comm.pending. */
typedef struct {
    bool busy;         /* the slot is in use: begun and not waited for */
    bool on_device;    /* `from` and `to` are device memory */
    bool by_transport; /* the device transport moves it; the backend only matches it */
    Transfer t;
    int64_t number;   /* of the transfer on this rank, from 0; identifies its Record */
    int64_t sequence; /* of the transfer in its channel, from 0; equal on all members */
    int64_t launch;   /* as `sequence`, among the transfers of the channel that are by_transport */
    double begun_s; /* MATCHED: the last member's begin, in seconds since the comm was opened; with
                       * CommSettings.delay_noticed the time at which this rank noticed it */
    double delay_s; /* seconds that it takes at least after that; 0: none */
    double due_s;   /* earliest completion, from its wait on; 0: any time */
    struct GroupRow *row;
    struct MatchChannel *channel;
    TransferProgress progress;
} PendingTransfer;

typedef struct {
    const char *name;
    /* Requires that pending[slot] is filled and has passed transfer_check. Guarantees that after an
     * error no member ever matches the transfer. */
    Err (*begin)(Comm *c, int slot);
    /* Blocks until progress is DONE. */
    Err (*wait)(Comm *c, int slot);
    void (*close)(Comm *c);
    bool moves_device_memory; /* else comm/staging.c stages it through the host */
    /* The three functions below may be NULL: the backend has nothing to do there. */
    Err (*poll)(Comm *c); /* advances this rank's transfers; does not block */
    /* Frees s->backend when the group closes; called only if it is set. */
    void (*end)(Comm *c, struct MatchChannel *s);
    void (*abort)(Comm *c, Err err, const char *message); /* ends the waits of all ranks */
} CommTable;

/* The head comment has the order of calls. An error of `begin` refuses the transfer. An error of
 * any other function counts as a failure of this rank and aborts the world. */
typedef struct DeviceTransport {
    const char *name;
    /* comm_prepare: opens the channels of these n transfers. */
    Err (*prepare)(Comm *c, const Transfer *t, int n);
    Err (*begin)(Comm *c, int slot);
    /* Does not block. Sets *launched once the share is enqueued; until then it is called again. */
    Err (*launch)(Comm *c, int slot, bool *launched);
    Err (*wait)(Comm *c, int slot);
    Err (*poll)(Comm *c); /* returns asynchronous errors of launched shares */
    /* Watchdog: called after waiting waited_s for the device. ERR_PEER naming the oldest unfinished
     * share; OK if none is queued, that is, the device is busy computing. */
    Err (*overdue)(Comm *c, double waited_s);
    void (*abort)(Comm *c); /* the world has failed: ends all launched shares */
    Err (*drain)(Comm *c);  /* waits for all launched shares of this rank */
    /* comm_times_open, comm_times_begin, comm_times_end. */
    Err (*times_open)(Comm *c, int n);
    Err (*times_begin)(Comm *c);
    Err (*times_end)(Comm *c);
    /* Adds the open channels and their device memory. */
    void (*use)(const Comm *c, CommDeviceUse *out);
    /* Frees s->transport when the group closes; called only if it is set. */
    void (*group_end)(Comm *c, struct MatchChannel *s);
    void (*release)(Comm *c); /* waits for the queues, then frees all that is on the device */
} DeviceTransport;

/* Transfers that are matched in order: the collectives of a group, its sends to one member, or its
 * receives from one member. */
typedef struct MatchChannel {
    int64_t next;        /* sequence number of the next transfer */
    int64_t next_launch; /* PendingTransfer.launch of the next one that is by_transport */
    void *backend;       /* the backend's data of the channel; NULL until the backend sets it */
    void *transport;     /* the device transport's data of it; NULL until the transport sets it */
    double due_s;        /* of the latest transfer with a delay (delay.c) */
} MatchChannel;

/* An open group: a list of ranks and a purpose. */
typedef struct GroupRow {
    int32_t serial; /* number of the group on this rank, see Record.group; -1: the row is free */
    int purpose, in_flight;
    int n, cap; /* ranks; allocated ranks, which the row keeps when the group ends */
    int32_t *rank;
    /* [1 + 2n]: [0] collectives; [1 + p] sends to, [1 + n + p] receives from peer p, an index in
     * the group. */
    MatchChannel *channel;
} GroupRow;

enum { MAX_GROUPS = 256, TRANSFER_NAME_BYTES = RECORD_TEXT_BYTES, COMM_TEXT_BYTES = 2048 };
/* Arena ids after those of callers: comm's own buffer, which comm_agree and the opening of NCCL
 * channels transfer; then two bounce buffers per slot. */
enum { COMM_OWN = MAX_COMM_ARENAS, COMM_STAGING };

/* Host staging of one slot (staging.c). The buffers themselves are the arenas COMM_STAGING + 2 *
 * slot for `from` and the next one for `to`. */
typedef struct {
    Ref to;                  /* destination of the result on the device; count 0: there is none */
    DeviceEvent *copied_out; /* recorded after the copy of the last result to the device */
    bool copy_pending;       /* copied_out is recorded and not waited for yet */
} BounceBuffers;

struct Comm {
    const CommTable *table;
    void *state; /* the backend's */
    CommSettings set;
    Arena *arena;
    struct {
        char *base;
        size_t bytes;
        bool on_device;
    } * memory; /* registered memory by arena id: [COMM_STAGING + 2 * set.in_flight] */
    CommDevice device;
    const DeviceTransport *transport; /* NULL: the backend moves everything */
    void *transport_state;
    bool transport_aborted;
    bool captures; /* between comm_capture on and off */
    struct {
        void (*drop)(void *arg);
        void *arg; /* NULL: the entry is free */
    } graphs[MAX_GRAPH_OWNERS];
    int32_t *all;          /* [ranks] their numbers; NULL: not made yet */
    double graph_at_s;     /* of the latest launch of a graph; 0: none */
    BounceBuffers *staged; /* [set.in_flight]; NULL until the first staged transfer */
    GroupRow group[MAX_GROUPS];
    int group_rows;           /* rows that were ever used; later ones are free */
    int32_t groups_made;      /* serial of the next group */
    PendingTransfer *pending; /* [set.in_flight] */
    Recorder *recorder;
    double opened_s; /* on the monotonic clock */
};

/* Local. Creates the common part in the arena; the backend has opened its state. */
Err comm_open(Arena *a, const CommSettings *set, const CommTable *table, void *state, Comm **out);
/* Local. True if a transfer was begun and not waited for; `text` names the oldest. Unlike
 * comm_idle it leaves err_text alone: a rank that closes its comm after an error keeps the message
 * of that. */
bool comm_unfinished(const Comm *c, char text[COMM_TEXT_BYTES]);
/* Local. Sets the progress of the transfer and records the time. */
void comm_progress(Comm *c, int slot, TransferProgress progress);
/* Local. Address of a Ref of this rank that transfer_check has accepted. */
void *comm_at(const Comm *c, const Ref *r);
static inline size_t ref_bytes(const Ref *r) { return (size_t)r->count * dtype_bytes(r->dtype); }

/* group.c. Local. The row of a group; opens one for a new group. */
Err group_of(Comm *c, RankList ranks, int purpose, GroupRow **out);
/* Local. The row of an open group; NULL: it is not open. */
GroupRow *group_find(Comm *c, RankList ranks, int purpose);
/* Local. Returns the channel of a transfer. For a send or receive, returns the channel of the
 * collectives if the peer is not a member; transfer_check then refuses the transfer. */
MatchChannel *group_channel(GroupRow *g, const Transfer *t);
/* Local. Index of a rank in the list; -1: it is not in the list. */
int group_index(RankList group, int rank);

/* staging.c. Local. Before begin of a backend that handles only host memory: copies `from` to a
 * bounce buffer and redirects `from` and `to` of the transfer to host memory. The host waits for
 * the copy. */
Err staging_begin(Comm *c, int slot);
/* Local. After the wait: puts the copy of the result to the device into the compute queue. */
Err staging_end(Comm *c, int slot);
/* Local. Waits for copies out of the buffers, then frees buffers and events. */
void staging_close(Comm *c);

/* device_transport.c. Local. Sets the device transport of a comm, before its first transfer. */
void comm_set_transport(Comm *c, const DeviceTransport *transport, void *state);
/* Local. Handles the result of a call, of the transport if `by_transport`, else of the backend, and
 * returns `err`. The first error of either aborts the transport, and the backend too if it is the
 * transport's. A backend error has already aborted the backend. Keeps err_text, prefixed with the
 * rank if `by_transport`. Does nothing if err is OK or there is no transport. */
Err device_transport_failed(Comm *c, Err err, bool by_transport);
/* Local. Frees all that the transport has on the device; aborts it first if a transfer is in
 * flight. */
void device_transport_close(Comm *c);

/* delay.c. Local. ERR_CONFIG for negative or infinite delays. */
Err delay_check(const CommSettings *set);
/* Local. Seconds that a transfer takes at least; 0: none. */
double delay_of(const CommSettings *set, const Record *r);
/* Local. Sets p->due_s, that of a transfer that is DONE, and sleeps until then, polling this rank's
 * transfers. ERR_PEER if another rank fails. */
Err delay_wait(Comm *c, PendingTransfer *p);

/* check.c. Local. ERR_CHECK unless the transfer is well formed on this rank; `sequence` is for the
 * message. */
Err transfer_check(const Comm *c, const Transfer *t, int64_t sequence);
/* Local. "all-gather #3 over {0 1 2}, instruction 17"; "send #3 to rank 2 over {0 1 2}, ..." */
const char *transfer_name(const Transfer *t, int64_t sequence, char name[TRANSFER_NAME_BYTES]);
/* Local. True if `rank` reads its buffer `from` in this transfer: not in a receive, and in a
 * broadcast only on the root. */
bool transfer_reads(const Transfer *t, int rank);
/* Local. True if a member writes its buffer `to` in this transfer: not in a send. */
bool transfer_writes(const Transfer *t);
/* Local. First element, and number of elements, of the share of member `place` in a buffer (`from`
 * or `to`) of `total` elements that is split over n members. counts NULL: equal shares. */
int64_t part_start(const int64_t *counts, int64_t total, int n, int place);
int64_t part_count(const int64_t *counts, int64_t total, int n, int place);

/* Description of a transfer that members exchange at the rendezvous. All fields but `instr` must be
 * equal on all members. */
typedef struct {
    uint8_t kind, reduce, dtype; /* kind is COMM_SEND for both halves of a pair */
    int32_t root, instr;
    int64_t tag;
    int64_t count;  /* elements of the whole array; 0 for an all-to-all */
    uint64_t parts; /* hash of the counts per member; 0: equal shares */
} TransferSignature;

/* signature.c. Local. */
TransferSignature transfer_signature(const Transfer *t);
/* Local. Name of the first field that differs; NULL: they are equal. */
const char *signature_first_difference(const TransferSignature *a, const TransferSignature *b);
typedef struct {
    int rank;
    const TransferSignature *signature;
} MemberSignature;
/* Local. ERR_CHECK that names both ranks and the transfers that they began. `what`: the difference,
 * as signature_first_difference returns it. */
Err signature_mismatch(const PendingTransfer *p, const char *what, MemberSignature a,
                       MemberSignature b);

#endif
