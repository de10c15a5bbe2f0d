/* mpi_parts.h -- the rendezvous of processes over MPI; for the files of this folder. A comm has one
 * communicator, a duplicate of MPI_COMM_WORLD, and two kinds of messages on it:
 *
 *     control   tag 0: POST (a transfer was begun; with the elements if it is eager), FAIL, LEFT,
 *               QUERY and STATUS. Received from any rank, in the order sent.
 *     data      tags 1 + 2 * slot + phase of the sender: elements, from the memory of the sender
 *               into that of the receiver, in chunks.
 *
 * comm_begin sends a post to the other members. The n-th post of a rank on a channel (the
 * collectives of a group, or its sends from one rank to another) matches the n-th transfer begun
 * here on it. Control messages arrive in order, so no number has to be kept when a group ends. A
 * channel is identified by a hash of its name. After all members have posted, their signatures are
 * compared, and only then do elements move:
 *
 *                      to each other member i           from each other member i
 *     all-gather       from                             part i of to
 *     all-to-all       part i of from                   part i of to
 *     broadcast, send  from, on the root                to, on the others
 *     reduce-scatter   part i of from                   my part, into scratch: folded into to
 *     all-reduce       segment i of from                my segment, into scratch: folded into to
 *          phase 1     my segment of to, as folded      segment i of to
 *
 * A fold is thus one loop of its owner in the order of the group, whatever arrived first. An eager
 * transfer is sent whole with the posts instead, and each member folds for itself.
 *
 * No transfer finishes for a member before all have posted it. So a rank is never more than
 * `in_flight` posts ahead of another, which bounds the unexpected posts that are queued here. Data
 * arrives at a receive that is posted already, or is about to be: MPI need not buffer it. Data is
 * sent synchronously (MPI_Issend): a finished send was matched by the receiver, and its tag is free
 * for the next transfer in the slot.
 *
 * One transfer at a time owns the scratch memory. This cannot deadlock: its members only wait for
 * sends, and sending needs no scratch.
 *
 * One thread per process calls MPI (MPI_THREAD_FUNNELED), so nothing here is atomic or locked. */
#ifndef COMM_MPI_MPI_PARTS_H
#define COMM_MPI_MPI_PARTS_H

#include <mpi.h>
#include "comm/backend.h"
#include "comm/mpi/entry.h"

enum { CONTROL_TAG = 0, DATA_TAG = 1, PHASES = 2 };
enum { MAX_EAGER_BYTES = 4096, MAX_EAGER_WORK = 32768 }; /* of one array; of all members */
enum { CHUNK_BYTES = 256 * 1024, MIN_CHUNK_BYTES = 4096, SCRATCH_BYTES = 4 << 20 };
enum { WINDOW = 2 }; /* chunks of one flow in flight */
enum { STATUS_BYTES = 320 };

/* STATUS is the reply to QUERY: the position of a rank, as text. */
typedef enum { POST, FAIL, LEFT, QUERY, STATUS } ControlKind;

/* The header of every control message. */
typedef struct {
    int32_t what;     /* ControlKind */
    int32_t slot;     /* of the sender: part of the tags of its data */
    uint64_t channel; /* hash of its name */
    int64_t sequence;
    int64_t gives; /* of an all-to-all: elements for the receiver of this post */
    TransferSignature signature;
} MpiPost;

typedef struct ControlMessage {
    struct ControlMessage *next;
    int from, body_bytes;
    MpiPost post;
    char body[MAX_EAGER_BYTES]; /* elements, or a text; on the wire it follows the post */
} ControlMessage;

/* Elements in one direction between two ranks; done <= begun <= bytes. */
typedef struct {
    char *at; /* NULL: into scratch memory */
    size_t bytes, begun, done;
    int rank, tag;
    MPI_Request request[WINDOW];
} Flow;

/* Messages between this rank and one member. */
typedef struct {
    ControlMessage *message; /* its post; NULL: not arrived yet */
    MPI_Request posted;      /* my post, to it */
    Flow out[PHASES], in[PHASES];
} Peer;

/* SELF_PAIR: a send or receive of this rank with itself, whose other half is not begun. WAITING:
 * for the posts of the other members. MOVING: matched, elements are in flight. FINISHED: also the
 * state of a free slot. */
typedef enum { FINISHED, SELF_PAIR, WAITING, MOVING } MpiTransferState;

/* The backend's state of a slot, in addition to its PendingTransfer. */
typedef struct {
    MpiTransferState state;
    uint64_t channel; /* hash of its name */
    int n, me;        /* members; a pair is the sender, then the receiver */
    const int32_t *member;
    int32_t pair[2];
    bool eager, folds;
    int missing; /* posts of other members that have not arrived */
    size_t chunk;
    size_t mine, folded; /* of a reduction: bytes of my part; bytes of it that are folded */
    Peer *peer;          /* [ranks] by place in the group; my own is unused */
    char *message; /* the post, which MPI reads until it is sent: one for all, or one per member */
} MpiFlight;

/* A control message in flight that belongs to no transfer. */
typedef struct SentMessage {
    struct SentMessage *next;
    MPI_Request request;
    ControlMessage message;
} SentMessage;

typedef struct {
    CommWorld base;             /* first: a CommWorld * is an MpiProcess * */
    Arena arena;                /* of sent messages, which may outlive their comm */
    SentMessage *sent, *unused; /* in flight; for reuse */
    MPI_Comm comm;              /* of the open comm, or of the latest one */
    bool open, failed;
    bool oversubscribed; /* more ranks than cores on this host: a waiting rank yields at once */
    int failed_rank;
    char failed_text[COMM_TEXT_BYTES];
    uint8_t *left;         /* [ranks] 1: the rank has closed its comm */
    ControlMessage buffer; /* receives while no comm is open */
} MpiProcess;

/* A queue; `last` is where the next message is linked in. */
typedef struct {
    ControlMessage *first, **last;
} MessageList;

/* The latest post of a rank that matched a transfer of this rank, for hang reports. */
typedef struct {
    int32_t group, instr; /* group -1: there was none */
    CommKind kind;
    int64_t sequence;
} LatestPost;

typedef struct {
    MpiProcess *world;
    Arena pool; /* of all below; reserves addresses for the maximum, takes memory as it is used */
    MpiFlight *flight;
    int active, waits, scratch_slot; /* flights that are not finished; slots, or -1 */
    MessageList *unexpected; /* [ranks] posts that arrived before this rank began the transfer */
    ControlMessage *unused;
    LatestPost *latest; /* [ranks] */
    char *status_text;  /* [ranks][STATUS_BYTES]; "": no reply */
    char *scratch;      /* [WINDOW][ranks][scratch_chunk] */
    size_t scratch_chunk;
    const char **source; /* [ranks], for folds */
} MpiComm;

/* entry.c. Local. ERR_PEER with MPI's message unless rc is MPI_SUCCESS. */
Err mpi_ok(int rc, const char *what);
/* Local. Sends LEFT to all ranks: no more messages follow. */
void world_leave(MpiProcess *w);

/* control.c. Local. Sends a control message; the text may be NULL. Does not block. */
Err control_send(MpiProcess *w, int to, ControlKind what, const char *text);
/* Local. Frees messages that have been sent. */
Err control_reap(MpiProcess *w);
/* Local. Receives the next control message, if one has arrived, into `buffer`. */
Err control_next(MpiProcess *w, ControlMessage *buffer, bool *came);
/* Local. Receives and handles all control messages that have arrived. */
Err control_receive(Comm *c, bool *moved);
/* Local. Records that this rank failed and sends FAIL to all; only the first failure counts. */
void world_fail(MpiProcess *w, const char *text);
/* Local. ERR_PEER with the rank and the message of the first failure. */
Err world_error(const MpiProcess *w);

/* post.c. Local. Begins a transfer: sends its post to the other members. */
Err post_begin(Comm *c, int slot);
/* Local. Matches a post from another rank, or queues it as unexpected; takes the message over. */
Err post_arrives(Comm *c, ControlMessage *message);
/* Local. All have posted: ERR_CHECK unless their signatures are equal. */
Err post_compare(const Comm *c, int slot);
/* Local. Finishes both halves of a transfer of this rank with itself, once both are begun. */
Err post_self_pair(Comm *c, int slot, bool *moved);
/* Local. Frees the posts of the other members. */
void post_end(Comm *c, int slot);

/* flow.c. Local. Computes the flows to and from each member. */
void flow_split(Comm *c, int slot);
/* Local. Advances all flows of a transfer; sets *over when all are complete. */
Err flow_move(Comm *c, int slot, bool *moved, bool *over);
/* Local. Computes the result of an eager transfer from the posts. */
void flow_eager(Comm *c, int slot);
/* Local. Cancels the receives. False if after some time MPI may still write into this rank's
 * memory. */
bool flow_cancel(Comm *c, int slot);

/* advance.c. Local. Takes a transfer to its next state if possible. Sets *moved on progress and
 * never clears it. */
Err advance(Comm *c, int slot, bool *moved);
Err advance_all(Comm *c, bool *moved);
/* Local. The world has failed: cancels all transfers of this rank. */
void cancel_all(Comm *c);

/* wait.c. Local. OK when the transfer is finished. */
Err wait_over(Comm *c, int slot);
/* Local. Between tries: yields, or sleeps after a while without progress. */
void wait_backoff(double idle_s);

/* report.c. Local. Fails the world with a report of which rank waits for which. */
Err report_hang(Comm *c, int slot, double waited_s);
/* Local. A member that has left the world without posting; -1: there is none. */
int report_departed(const Comm *c, int slot);
/* Local. The position of this rank, as the reply to a query. */
void report_status(const Comm *c, char text[STATUS_BYTES]);

extern const CommTable mpi_table;

#endif
