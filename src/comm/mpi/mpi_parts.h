/* mpi_parts.h -- how processes meet over MPI; for the files of this folder.
 *
 * There is one communicator, a duplicate of the world's, and two kinds of messages on it:
 *
 *     mail   tag 0: "I have begun this" (a Post, with the elements when they are few), "I failed",
 *            "I left", "where are you", "here". Received from anyone, in the order sent.
 *     data   tags 1 + 2 * slot + phase of the sender: elements, from the memory of the sender
 *            into that of the receiver, in chunks.
 *
 * Begin posts the transfer to its other members. The n-th post from a rank on a stream (a group's
 * collectives; its sends from one rank to another) meets the n-th transfer begun here on it: mail
 * keeps its order, so no number has to be remembered when a group ends. A stream goes by a hash of
 * its name. Once all have posted they are compared, and only then do elements move:
 *
 *                      to each other member i           from each other member i
 *     all-gather       from                             part i of to
 *     all-to-all       part i of from                   part i of to
 *     broadcast, send  from, on the root                to, on the others
 *     reduce-scatter   part i of from                   my part, into scratch: folded into to
 *     all-reduce       segment i of from                my segment, into scratch: folded into to
 *          phase 1     my segment of to, as folded      segment i of to
 *
 * So a fold is one loop of its owner in the order of the group, whatever came first. What is small
 * goes whole with the posts instead, and each member folds for itself.
 *
 * No transfer is over for a member before all have posted it. So a rank is never more than
 * `in_flight` posts ahead of another, which bounds the mail that waits here; and data finds its
 * receive already posted, or about to be: MPI need not buffer it. Data is sent synchronously: when
 * it is over, the receiver has matched it, and the tag is free for the next transfer in the slot.
 *
 * One transfer at a time has the scratch memory. That cannot hang: others only send to it, and
 * sending needs no scratch. */
#ifndef COMM_MPI_MPI_PARTS_H
#define COMM_MPI_MPI_PARTS_H

#include <mpi.h>
#include "comm/backend.h"
#include "comm/mpi/entry.h"

enum { CONTROL_TAG = 0, DATA_TAG = 1, PHASES = 2 };
enum { MAX_EAGER_BYTES = 4096, MAX_EAGER_WORK = 32768 }; /* of an array; of those of all members */
enum { CHUNK_BYTES = 256 * 1024, MIN_CHUNK_BYTES = 4096, SCRATCH_BYTES = 4 << 20 };
enum { WINDOW = 2 }; /* chunks of one flow under way */
enum { STATUS_BYTES = 320 };

typedef enum { POST, FAIL, LEFT, QUERY, STATUS } ControlKind;

/* The head of all mail. */
typedef struct {
    int32_t what; /* ControlKind */
    int32_t slot; /* of the sender: names its data */
    uint64_t stream;
    int64_t sequence;
    int64_t gives; /* of an all-to-all: elements for who gets this */
    TransferSignature signature;
} MpiPost;

typedef struct ControlMessage {
    struct ControlMessage *next;
    int from, body_bytes;
    MpiPost post;
    char body[MAX_EAGER_BYTES]; /* elements, or a text; on the wire it follows the post */
} ControlMessage;

/* Elements that go one way between two ranks. */
typedef struct {
    char *at; /* NULL: into scratch memory */
    size_t bytes, begun, done;
    int rank, tag;
    MPI_Request request[WINDOW];
} Flow;

/* What this rank exchanges with one member. */
typedef struct {
    ControlMessage *message; /* its post; NULL: not come yet */
    MPI_Request posted;      /* mine, to it */
    Flow out[PHASES], in[PHASES];
} Peer;

/* A begun transfer, beside its Pending. */
typedef enum { FINISHED, SELF_PAIR, WAITING, MOVING } MpiTransferState;
typedef struct {
    MpiTransferState state;
    uint64_t stream;
    int n, me; /* members: of a pair the sender, then the receiver */
    const int32_t *member;
    int32_t pair[2];
    bool eager, folds;
    int missing; /* posts of others that have not come */
    size_t chunk;
    size_t mine, folded; /* of a reduction: bytes of my part; of those, folded */
    Peer *peer;          /* [ranks] by place; mine is not used */
    char *message;       /* what is posted: one for all, or one a member */
} MpiFlight;

/* Mail on its way that belongs to no transfer. */
typedef struct SentMessage {
    struct SentMessage *next;
    MPI_Request request;
    ControlMessage message;
} SentMessage;

typedef struct {
    CommWorld base;             /* first: a CommWorld * is an MpiProcess * */
    Arena arena;                /* letters outlive the comm they were written for */
    SentMessage *sent, *unused; /* under way; to be used again */
    MPI_Comm comm;              /* of the comm that is open, or was last */
    bool open, failed;
    bool oversubscribed; /* more ranks than cores here: who waits gives its core away at once */
    int failed_rank;
    char failed_text[COMM_TEXT_BYTES];
    uint8_t *left;       /* [ranks] they have closed their comm */
    ControlMessage room; /* for what comes when no comm is open */
} MpiProcess;

typedef struct {
    ControlMessage *first, **last;
} MessageList;

/* The latest post of a rank that met one of ours. */
typedef struct {
    int32_t group, instr; /* -1: there was none */
    CommKind kind;
    int64_t sequence;
} LatestPost;

typedef struct {
    MpiProcess *world;
    Arena pool; /* all below; addresses for the most there can be, memory as it is used */
    MpiFlight *flight;
    int active, waits, scratch_slot; /* flights that are not over; slots, or -1 */
    MessageList *unexpected;         /* [ranks] posts that came before our begin */
    ControlMessage *unused;
    LatestPost *latest; /* [ranks] */
    char *status_text;  /* [ranks][STATUS_BYTES]; "": none has come */
    char *scratch;      /* [WINDOW][ranks][scratch_chunk] */
    size_t scratch_chunk;
    const char **source; /* [ranks], for folds */
} MpiComm;

/* entry.c. Local. ERR_PEER with MPI's words unless rc is MPI_SUCCESS. */
Err mpi_ok(int rc, const char *what);
/* Tells the others that nothing more will come. */
void world_leave(MpiProcess *w);

/* mail.c. Local. Sends a letter; the text may be NULL. */
Err control_send(MpiProcess *w, int to, ControlKind what, const char *text);
/* Letters that have arrived give their memory back. */
Err control_reap(MpiProcess *w);
/* The next mail, if there is some, into `room`. */
Err control_next(MpiProcess *w, ControlMessage *room, bool *came);
/* Takes in all that has come. */
Err control_receive(Comm *c, bool *moved);
/* This rank failed: tells the others. The first failure counts. */
void world_fail(MpiProcess *w, const char *text);
/* ERR_PEER with the first failure's rank and message. */
Err world_error(const MpiProcess *w);

/* post.c. Local. Begins: tells the other members. */
Err post_begin(Comm *c, int slot);
/* A post from another rank. */
Err post_arrives(Comm *c, ControlMessage *message);
/* All have posted: do they mean the same? */
Err post_compare(const Comm *c, int slot);
/* Of a send or receive of this rank with itself: over when the other half has begun. */
Err post_self_pair(Comm *c, int slot, bool *moved);
/* The mail of its members is no longer needed. */
void post_end(Comm *c, int slot);

/* flow.c. Local. Lays out what goes to and comes from each member. */
void flow_split(Comm *c, int slot);
/* Moves on by what can be moved; *over when all is there. */
Err flow_move(Comm *c, int slot, bool *moved, bool *over);
/* Small: makes the result from the posts. */
void flow_eager(Comm *c, int slot);
/* Nobody writes into this rank's memory any more, or false: after some time it still may. */
bool flow_cancel(Comm *c, int slot);

/* steps.c. Local. */
Err advance(Comm *c, int slot, bool *moved);
Err advance_all(Comm *c, bool *moved);
/* The world has failed. */
void cancel_all(Comm *c);
/* An error of this rank ends the world; one of another's is passed on. */
Err fail_world(Comm *c, Err err);

/* wait.c. Local. */
Err wait_over(Comm *c, int slot);
/* Between tries: a yield, or a nap when it has been long. */
void wait_backoff(double idle_s);

/* report.c. Local. Who waits for whom. */
Err report_hang(Comm *c, int slot, double waited_s);
int report_departed(const Comm *c, int slot);
/* Where this rank is, for one that asks. */
void report_status(const Comm *c, char text[STATUS_BYTES]);

extern const CommTable mpi_table;

#endif
