/* backend.h -- what a comm is made of; for the files of this folder and its backends.
 *
 *     comm_begin:  check.c -> group and sequence -> record -> table->begin
 *     comm_wait:   ticket  -> table->wait -> delay.c -> record -> slot free again
 *
 * A backend moves bytes and says when a transfer was matched and when it was done; what holds for
 * all of them is done once, above the table.
 *
 * Memory of devices may be moved by somebody else than the backend, a mover: comm/nccl. Members then
 * meet as ever, by the backend, which compares what they mean and reports who does not come; and
 * when all have begun a transfer, each has the mover put its part into a queue of the device:
 *
 *     begin   transport->begin    an event of the compute queue: what it needs is made
 *     met     transport->launch     ... until it is in the queue: then it is over, for the host
 *     wait    transport->wait  the compute queue waits for it */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

typedef enum { POSTED, MATCHED, DONE } TransferProgress;

typedef struct {
    bool busy;
    bool device;       /* its memory is a device's */
    bool by_transport; /* and the comm's mover moves it: the backend only lets its members meet */
    Transfer t;
    int64_t number, sequence;
    double due_s; /* since the comm was opened: not over before; 0: no matter */
    struct GroupRow *row;
    struct Stream *stream;
    TransferProgress progress;
} Pending;

typedef struct {
    const char *name;
    /* The slot is filled and checked. An error takes the transfer back. */
    Err (*begin)(Comm *c, int slot);
    /* OK only when progress is DONE. */
    Err (*wait)(Comm *c, int slot);
    void (*close)(Comm *c);
    bool
        device; /* moves memory of devices by itself; else comm/staging.c takes it through the host's */
    /* These may be NULL: nothing to do. */
    Err (*poll)(Comm *c);
    void (*end)(Comm *c, struct Stream *s); /* its group is forgotten; it has a link */
    void (*abort)(Comm *c, Err err, const char *message);
} CommTable;

/* See above. An error of any of these is the rank's, and ends the world. */
typedef struct DeviceTransport {
    const char *name;
    Err (*prepare)(Comm *c, const Transfer *t, int n);
    Err (*begin)(Comm *c, int slot);
    Err (*launch)(Comm *c, int slot, bool *over); /* does not block; called until it is over */
    Err (*wait)(Comm *c, int slot);
    Err (*poll)(Comm *c); /* has something failed that was put into a queue? */
    /* Says what was put into a queue and does not end; OK: nothing is there. */
    Err (*overdue)(Comm *c, double waited_s);
    void (*abort)(Comm *c);                       /* the world has failed: ends what is in queues */
    void (*group_end)(Comm *c, struct Stream *s); /* its group is forgotten; it has a way */
    void (*release)(Comm *c); /* the device goes; what is in queues is waited for */
} DeviceTransport;

/* What is matched in order: the collectives of a group, its sends to one member, its receives from
 * one. */
typedef struct Stream {
    int64_t next;    /* sequence number of the next transfer */
    void *backend;   /* the backend's; NULL until it sets it */
    void *transport; /* the mover's; likewise */
} Stream;

typedef struct GroupRow {
    int32_t serial; /* -1: free */
    int purpose, in_flight;
    int n, cap; /* ranks; room for ranks, which the row keeps when the group ends */
    int32_t *rank;
    Stream *stream; /* [1 + 2n]: collectives, sends by place of the peer, receives likewise */
} GroupRow;

enum { MAX_GROUPS = 256, TRANSFER_NAME_BYTES = RECORD_TEXT_BYTES, COMM_TEXT_BYTES = 2048 };
/* Arenas of the comm's own: for agreements; two of each slot, of what is staged. */
enum { COMM_OWN = MAX_COMM_ARENAS, COMM_STAGING };

/* A slot's memory on the host, of what is on a device: stage.c. */
typedef struct {
    Ref to;          /* where the result goes; count 0: there is none */
    DeviceEvent *in; /* the last result has left this memory */
    bool full;       /* `in` was recorded */
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
    bool aborted;          /* the mover has given up */
    BounceBuffers *staged; /* by slot; NULL: none ever was */
    GroupRow group[MAX_GROUPS];
    int group_rows; /* that were ever used: later ones are free */
    int32_t groups_made;
    Pending *pending; /* [set.in_flight] */
    Recorder *recorder;
    double opened_s;
};

/* Local. The common part, in the arena; the backend has opened its state. */
Err comm_open(Arena *a, const CommSettings *set, const CommTable *table, void *state, Comm **out);
/* Local. Moves the transfer on and notes when. */
void comm_progress(Comm *c, int slot, TransferProgress progress);
/* Local. Address of a Ref of this rank, which was checked. */
void *comm_at(const Comm *c, const Ref *r);
static inline size_t ref_bytes(const Ref *r) { return (size_t)r->count * dtype_bytes(r->dtype); }

/* group.c. Local. The row of a group, opened when it is new. */
Err group_of(Comm *c, RankList ranks, int purpose, GroupRow **out);
GroupRow *group_find(Comm *c, RankList ranks, int purpose);
/* The stream of a transfer; of one whose peer is no member, that of collectives. */
Stream *group_stream(GroupRow *g, const Transfer *t);
/* Place of a rank in the list, or -1. */
int group_place(RankList group, int rank);

/* stage.c. Local. Before a backend that knows no device begins: `from` to the host's memory, and the
 * transfer's sides there. */
Err staging_begin(Comm *c, int slot);
/* After its wait: `to` to the device, before what the compute queue gets from now on. */
Err staging_end(Comm *c, int slot);
void staging_close(Comm *c);

/* mover.c. Local. The mover of a comm that has no transfer in flight. */
void comm_set_transport(Comm *c, const DeviceTransport *transport, void *state);
/* An error of the backend's, or of the mover's when `own`: what is in queues is given up; err_text
 * stays. */
Err device_transport_failed(Comm *c, Err err, bool own);
void device_transport_close(Comm *c);

/* delay.c. Local. ERR_CONFIG for settings that are no delay. */
Err delay_check(const CommSettings *set);
/* When a transfer that was posted may be over, on the clock of its record; 0: any time. */
double delay_due_s(const CommSettings *set, const Record *r);
/* Sleeps until then; moves what this rank has begun. ERR_PEER when another rank failed meanwhile.
 * */
Err delay_wait(Comm *c, double due_s);

/* check.c. Local. ERR_CHECK unless the transfer is well formed on this rank; `sequence` is for the
 * message. */
Err transfer_check(const Comm *c, const Transfer *t, int64_t sequence);
/* "all-gather #3 over {0 1 2}, instruction 17"; "send #3 to rank 2 over {0 1 2}, ..." */
const char *transfer_name(const Transfer *t, int64_t sequence, char name[TRANSFER_NAME_BYTES]);
/* Are `from` and `to` memory of this rank in this transfer? */
bool transfer_reads(const Transfer *t, int rank);
bool transfer_writes(const Transfer *t);
/* Of a side that is cut over n members: where the part of one begins, and its elements. */
int64_t part_start(const int64_t *counts, int64_t total, int n, int place);
int64_t part_count(const int64_t *counts, int64_t total, int n, int place);

/* What a member says of a transfer when it begins it; all but `instr` is the same on all. */
typedef struct {
    uint8_t kind, reduce, dtype; /* both halves of a pair are sends */
    int32_t root, tag, instr;
    int64_t count;  /* of the whole array; 0 for an all-to-all */
    uint64_t parts; /* a hash of the counts that all must agree on; 0: equal parts */
} TransferSignature;

/* meant.c. Local. */
TransferSignature transfer_signature(const Transfer *t);
/* In what they differ; NULL: in nothing. */
const char *signature_differs(const TransferSignature *a, const TransferSignature *b);
typedef struct {
    int rank;
    const TransferSignature *signature;
} MemberSignature;
/* ERR_CHECK that says who began what. */
Err signature_mismatch(const Pending *p, const char *what, MemberSignature a, MemberSignature b);

#endif
