/* backend.h -- the parts of a comm; for the files of this folder and its backends.
 *
 *     comm_begin:  check.c -> group and sequence -> record -> table->begin
 *     comm_wait:   ticket  -> table->wait -> delay.c -> record -> slot is free again
 *
 * A backend moves bytes and reports when a transfer was matched and when it was done. Everything
 * that holds for all backends is done once, above the table.
 *
 * Device memory may be moved by a device transport, comm/nccl, instead of the backend. The backend
 * still does the rendezvous: it matches the members' transfers, compares their signatures and
 * reports members that do not arrive. After the match each member launches its part:
 *
 *     begin     transport->begin    records an event in the compute queue: the inputs are ready
 *     matched   transport->launch   called until the part is in a queue: then done, for the host
 *     wait      transport->wait     the compute queue waits for the part
 *
 * All functions run on the one thread of the rank. Memory that other ranks access at the same time
 * belongs to a backend, and its header names the owner and the lock of each member. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

/* POSTED: begun here. MATCHED: all members have begun it, with equal signatures. DONE: `to` may be
 * read and `from` be written; of device memory, the part is in a queue of the device. */
typedef enum { POSTED, MATCHED, DONE } TransferProgress;

typedef struct {
    bool busy;
    bool device;       /* its memory is a device's */
    bool by_transport; /* the device transport moves it; the backend only matches it */
    Transfer t;
    int64_t number, sequence;
    double due_s; /* not done before this time since the comm was opened; 0: any time */
    struct GroupRow *row;
    struct Stream *stream;
    TransferProgress progress;
} Pending;

typedef struct {
    const char *name;
    /* The slot is filled and checked. After an error no member ever matches the transfer. */
    Err (*begin)(Comm *c, int slot);
    /* Returns OK only if progress is DONE. */
    Err (*wait)(Comm *c, int slot);
    void (*close)(Comm *c);
    bool device; /* moves device memory itself; else comm/staging.c stages it */
    /* Optional; NULL: nothing to do. */
    Err (*poll)(Comm *c);
    void (*end)(Comm *c, struct Stream *s); /* its group is closed; s->backend is set */
    void (*abort)(Comm *c, Err err, const char *message);
} CommTable;

/* The head comment has the order of calls. An error of any function is the rank's own and aborts
 * the world. */
typedef struct DeviceTransport {
    const char *name;
    Err (*prepare)(Comm *c, const Transfer *t, int n);
    Err (*begin)(Comm *c, int slot);
    Err (*launch)(Comm *c, int slot, bool *over); /* does not block */
    Err (*wait)(Comm *c, int slot);
    Err (*poll)(Comm *c); /* returns errors of launched parts */
    /* ERR_PEER that names the oldest part in a queue; OK if there is none: the device computes. */
    Err (*overdue)(Comm *c, double waited_s);
    void (*abort)(Comm *c); /* the world has failed: ends all launched parts */
    void (*group_end)(Comm *c, struct Stream *s); /* its group is closed; s->transport is set */
    void (*release)(Comm *c); /* waits for the queues, then frees all that is on the device */
} DeviceTransport;

/* Transfers that are matched in order: the collectives of a group, its sends to one member, or its
 * receives from one. */
typedef struct Stream {
    int64_t next;    /* sequence number of the next transfer */
    void *backend;   /* owned by the backend; NULL until it sets it */
    void *transport; /* owned by the device transport; NULL until it sets it */
} Stream;

typedef struct GroupRow {
    int32_t serial; /* -1: free */
    int purpose, in_flight;
    int n, cap; /* ranks; allocated ranks, which the row keeps when the group ends */
    int32_t *rank;
    Stream
        *stream; /* [1 + 2n]: collectives; sends, then receives by the peer's place in the group */
} GroupRow;

enum { MAX_GROUPS = 256, TRANSFER_NAME_BYTES = RECORD_TEXT_BYTES, COMM_TEXT_BYTES = 2048 };
/* Arena ids after those of callers: the memory of agreements, then two bounce buffers per slot. */
enum { COMM_OWN = MAX_COMM_ARENAS, COMM_STAGING };

/* Host staging of one slot (staging.c). The buffers themselves are the arenas COMM_STAGING + 2 *
 * slot for `from` and the next one for `to`. */
typedef struct {
    Ref to;          /* destination of the result on the device; count 0: there is none */
    DeviceEvent *in; /* the last result has been copied out of the buffer */
    bool full;       /* `in` is recorded and not waited for yet */
} BounceBuffers;

struct Comm {
    const CommTable *table;
    void *state; /* the backend's */
    CommSettings set;
    Arena *arena;
    struct {
        char *base;
        size_t bytes;
        bool device;
    } * memory; /* [COMM_STAGING + 2 * set.in_flight] */
    CommDevice device;
    const DeviceTransport *transport; /* NULL: the backend moves everything */
    void *transport_state;
    bool aborted;          /* the device transport was aborted */
    BounceBuffers *staged; /* [set.in_flight]; NULL until the first staged transfer */
    GroupRow group[MAX_GROUPS];
    int group_rows; /* rows that were ever used; later ones are free */
    int32_t groups_made;
    Pending *pending; /* [set.in_flight] */
    Recorder *recorder;
    double opened_s;
};

/* Local. Creates the common part in the arena; the backend has opened its state. */
Err comm_open(Arena *a, const CommSettings *set, const CommTable *table, void *state, Comm **out);
/* Local. Sets the progress of the transfer and records the time. */
void comm_progress(Comm *c, int slot, TransferProgress progress);
/* Local. Address of a Ref of this rank that transfer_check has accepted. */
void *comm_at(const Comm *c, const Ref *r);
static inline size_t ref_bytes(const Ref *r) { return (size_t)r->count * dtype_bytes(r->dtype); }

/* group.c. Local. The row of a group; opens one for a new group. */
Err group_of(Comm *c, RankList ranks, int purpose, GroupRow **out);
GroupRow *group_find(Comm *c, RankList ranks, int purpose);
/* Local. The stream of a transfer; the stream of collectives if its peer is no member. */
Stream *group_stream(GroupRow *g, const Transfer *t);
/* Local. Index of a rank in the list, or -1. */
int group_place(RankList group, int rank);

/* staging.c. Local. For backends without device memory, before begin: copies `from` to a bounce
 * buffer and redirects both sides of the transfer to host memory. The host waits for the copy. */
Err staging_begin(Comm *c, int slot);
/* Local. After the wait: puts the copy of the result into the compute queue. */
Err staging_end(Comm *c, int slot);
/* Local. Waits for copies out of the buffers, then frees buffers and events. */
void staging_close(Comm *c);

/* device_transport.c. Local. Sets the device transport of a comm, before its first transfer. */
void comm_set_transport(Comm *c, const DeviceTransport *transport, void *state);
/* Local. Returns `err`. An error of the backend, or of the transport if `own`, aborts both of them
 * once; err_text stays as it is. */
Err device_transport_failed(Comm *c, Err err, bool own);
/* Local. Frees all that the transport has on the device; aborts it first if a transfer is in
 * flight. */
void device_transport_close(Comm *c);

/* delay.c. Local. ERR_CONFIG for negative or infinite delays. */
Err delay_check(const CommSettings *set);
/* Local. Earliest completion of a posted transfer, on the clock of its record; 0: any time. */
double delay_due_s(const CommSettings *set, const Record *r);
/* Local. Sleeps until then, and advances the transfers of this rank meanwhile. ERR_PEER if another
 * rank fails. */
Err delay_wait(Comm *c, double due_s);

/* check.c. Local. ERR_CHECK unless the transfer is well formed on this rank; `sequence` is for the
 * message. */
Err transfer_check(const Comm *c, const Transfer *t, int64_t sequence);
/* Local. "all-gather #3 over {0 1 2}, instruction 17"; "send #3 to rank 2 over {0 1 2}, ..." */
const char *transfer_name(const Transfer *t, int64_t sequence, char name[TRANSFER_NAME_BYTES]);
/* Local. True if `from`, or `to`, is memory of this rank in this transfer. */
bool transfer_reads(const Transfer *t, int rank);
bool transfer_writes(const Transfer *t);
/* Local. First element, and number of elements, of the part of one member; the side is split over n
 * members. counts NULL: equal parts. */
int64_t part_start(const int64_t *counts, int64_t total, int n, int place);
int64_t part_count(const int64_t *counts, int64_t total, int n, int place);

/* Description of a transfer that members exchange at the rendezvous; all but `instr` must be equal
 * on all of them. */
typedef struct {
    uint8_t kind, reduce, dtype; /* kind is COMM_SEND for both halves of a pair */
    int32_t root, tag, instr;
    int64_t count;  /* elements of the whole array; 0 for an all-to-all */
    uint64_t parts; /* hash of the counts that all must agree on; 0: equal parts */
} TransferSignature;

/* signature.c. Local. */
TransferSignature transfer_signature(const Transfer *t);
/* Local. Name of the first difference; NULL: they are equal. */
const char *signature_differs(const TransferSignature *a, const TransferSignature *b);
typedef struct {
    int rank;
    const TransferSignature *signature;
} MemberSignature;
/* Local. ERR_CHECK that names both ranks and the transfers that they began. */
Err signature_mismatch(const Pending *p, const char *what, MemberSignature a, MemberSignature b);

#endif
