/* comm.h -- transfers between ranks.
 *
 * Memory is named, not pointed to: a Ref is (rank, arena, offset), and each rank registers its
 * arenas. So a transfer is plain data that can be printed, checked and simulated, and that means
 * the same on every rank.
 *
 *     Transfer t = {.kind = COMM_ALL_GATHER, .group = tp, .instr = 17,
 *                   .from = {rank, ARENA_FRAME, 4096, 1024, F32},
 *                   .to = {rank, ARENA_FRAME, 8192, 4096, F32}};
 *     TRY(comm_begin(comm, &t, &ticket));    ... other work; neither from nor to is touched ...
 *     TRY(comm_wait(comm, ticket));
 *
 * A group is a list of ranks and a purpose, nothing more; the first transfer that names it opens
 * it. All its members begin the same collectives on it in the same order, which is how they are
 * matched; transfers of two groups do not wait for each other. The n-th send from a to b on a group
 * meets the n-th receive on b from a. What can be seen to be wrong is refused when begun.
 *
 * Reductions are left folds in the order of the group, element by element, in the value's own type;
 * bf16 is folded in f32 and rounded once. So a result depends on neither arrival nor timing. A
 * maximum over a NaN is NaN; sums of integers wrap. Sums by NCCL alone are folded in an order, and
 * rounded as often, as it likes (comm/nccl.h).
 *
 * Begin does not block. A transfer moves while any member waits or polls; a wait moves all that its
 * rank has begun, so ranks may wait in different orders.
 *
 * A rank that fails poisons the comm: every wait on every rank ends with ERR_PEER and the first
 * error's message. After ERR_PEER nobody touches this rank's memory, and nothing can be begun.
 *
 * Memory of a device (device/runtime.h) is registered as such. A transfer of it reads `from`, and
 * writes `to`, after what is in the rank's compute queue when it is begun; a wait holds that queue
 * back, not the host. Where the host has to know, it waits for the queue.
 *
 *     compute  | ... from is made | e0     other kernels      wait e1 | to is read ...
 *     comm     |              wait e0 | the rank's part | e1
 *
 * A Comm belongs to one rank and is used by one thread. Every transfer passes its recorder. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"
#include "base/ranks.h"
#include "device/runtime.h"

/* Ids of registered memory. A rank registers the arenas of its programs from 0 on (ArenaId of
 * schedule/link/link.h, then the mailbox; a second program follows the first). Modules that transfer
 * memory of their own have one id each, after those. */
enum {
    MAX_PROGRAM_ARENAS = 25,
    ARENA_REPLICAS = MAX_PROGRAM_ARENAS, /* train/replicas.c: hashes of replicated state */
    ARENA_LOOP,                          /* train/step.c: sums over the ranks of a step */
    ARENA_LOAD,                          /* state/load.c: chunks of a checkpoint */
    ARENA_SCORES,                        /* infer/score.c: losses of sequences */
    ARENA_CHOICE,                        /* infer/generate.c: sampled tokens */
    ARENA_OFFERS,                        /* world/transport.c: transports that ranks have */
    ARENA_NUMBERS,                       /* world/world.c: numbers that must be equal */
    MAX_COMM_ARENAS
};

typedef struct {
    int rank;
    int arena;
    size_t offset;
    int64_t count; /* elements; 0 is legal, and still a transfer that has to meet its peers */
    DType dtype;
} Ref;

typedef enum {
    COMM_SEND,           /* from here to to.rank; only the rank of `to` is read */
    COMM_RECV,           /* from from.rank to here; only the rank of `from` is read */
    COMM_ALL_REDUCE,     /* to = from of all members, folded in the order of the group */
    COMM_ALL_GATHER,     /* to = from of all members, back to back; to_counts: per member */
    COMM_REDUCE_SCATTER, /* to = my part of the folded from; from_counts: per member */
    COMM_ALL_TO_ALL,     /* part i of from goes to member i; both counts, or neither: equal parts */
    COMM_BROADCAST,      /* to = from of from.rank; `from` is read on that rank alone */
    N_COMM_KINDS
} CommKind;

typedef enum { REDUCE_SUM, REDUCE_MAX } Reduce;

/* `from` may lie in `to` exactly where its elements end up (`to` in `from` for a reduce-scatter):
 * that is "in place". Other overlaps are refused; an all-to-all has no in-place form. The lists are
 * the caller's and live until the wait. */
typedef struct {
    CommKind kind;
    Reduce reduce;
    RankList group;
    int purpose; /* groups of the same ranks with different purposes are different groups */
    Ref from, to;
    const int64_t *from_counts, *to_counts; /* [group.n] elements per member, or NULL: all alike */
    int32_t instr;                          /* who asked: for messages and for the recorder */
    int32_t tag; /* what is moved: the same on all members, or they do not mean the same transfer */
    bool scalar; /* a norm, a loss, an agreement: the recorder counts it apart */
} Transfer;

typedef struct {
    int slot;
    int64_t number;
} Ticket;

typedef struct Comm Comm;

/* A hostile comm completes a transfer as early as it can or only when it is waited for, by a seeded
 * coin, and until then `to` is full of 0xFF, which is NaN in every float type. What is late is also
 * posted after a random delay. So code that reads before it waits is caught, and every order of
 * arrival comes up. */
typedef struct {
    int rank, ranks;
    int in_flight;    /* most transfers begun and not waited for */
    int64_t records;  /* that the recorder keeps */
    bool hostile;     /* for tests, see above */
    uint64_t seed;    /* of its coin and delays */
    double timeout_s; /* a longer wait is an error that says who waits for whom; 0: none is */
    /* As on a slower network: a transfer between ranks is over no sooner than delay_s, and its
     * bytes at delay_Bps, after this rank began it. The waiting rank sleeps. 0: none. */
    double delay_s, delay_Bps;
    bool staged; /* memory of a device goes through the host's, also where it need not: for tests */
    struct Recorder
        *recorder; /* with room for `records` in its ring, in memory that may be shared and
                                  outlives the comm; NULL: the comm has its own */
} CommSettings;

/* Local. */
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Local. The id must mean the same on every rank. Registering again replaces; the memory must
 * outlive the transfers that name it. ERR_CHECK for an id out of range. */
Err comm_register(Comm *c, int arena, void *base, size_t bytes);

/* A rank on a device. */
typedef struct {
    const DeviceRuntime *runtime;
    DeviceContext *context;
} CommDevice;

/* Local. Memory of the device, or of the host that the device sees at the same address. ERR_CHECK
 * for a second context while transfers are in flight: a comm has one at a time. */
Err comm_register_device(Comm *c, int arena, void *base, size_t bytes, CommDevice device);
/* Local. Before the context is closed, where the comm is not: gives back what it has of it. Nothing
 * of the device may be in flight. */
void comm_release_device(Comm *c);
/* Collective over all ranks: before transfers of device memory over these groups, each of which all
 * its members name; what was named before is there. Of a transfer kind, group, purpose and, of a
 * pair, its ranks are read. Nothing to do for comms that have nothing to open. */
Err comm_prepare(Comm *c, const Transfer *t, int n);
/* Local. The host waits for all that is in a queue of the device, as the device's sync does; but a
 * transfer in front of it that fails, or is not over within timeout_s, ends the wait: ERR_PEER. */
Err comm_sync(Comm *c, CommDevice device, DeviceQueue *q);
/* Local. "nccl", "mpi", "local": who moves memory of a device. */
const char *comm_transport_name(const Comm *c);
/* Local. Does memory of a device go through the host's here, for its backend knows no device? */
bool comm_is_staged(const Comm *c);

/* Collective over the group (for sends and receives: over the pair). ERR_CHECK names the transfer,
 * the arena, the offset and the limit. */
Err comm_begin(Comm *c, const Transfer *t, Ticket *out);
/* Local; returns once `to` may be read and `from` be written. ERR_CHECK for a transfer that can
 * never complete, for one that its members do not agree on, and for a ticket waited for twice.
 * ERR_PEER when another rank failed, or did not come within timeout_s. */
Err comm_wait(Comm *c, Ticket ticket);
/* Local; does not block. Moves what was begun by about a chunk each: for between instructions. */
Err comm_poll(Comm *c);
/* Collective likewise: begin, then wait. */
Err comm_do(Comm *c, const Transfer *t);
/* Local. ERR_CHECK names the oldest transfer that was begun and not waited for. */
Err comm_idle(const Comm *c);
/* Collective over the group: forget it, for groups that live for one step. ERR_CHECK while it has
 * transfers in flight. A group never used is nothing to forget. */
Err comm_group_end(Comm *c, RankList group, int purpose);
/* Local. This rank failed: gives up what it has in flight and ends every wait of every rank. Of
 * several the first counts. */
void comm_abort(Comm *c, Err err, const char *message);
/* Collective over the group: what each member came to. OK when all did; else, on all, the error of
 * the lowest rank that has one, with its message (of this thread's err_text) and its rank. */
Err comm_agree(Comm *c, RankList group, Err mine);

/* ---- the recorder ---- */

/* sent_bytes is what leaves this rank when each element goes straight to where it is needed, which
 * is the least there can be, alike on every comm and exact; the sum over the group:
 *
 *     all-reduce      the array but my segment to its owners, my segment to the others  2(p-1) n
 *                     (n cut over the members, the first n mod p one longer)
 *     all-gather      my part to each other member                                      (p-1) total
 *     reduce-scatter  all parts but mine                                                (p-1) n
 *     all-to-all      all parts but what stays here
 *     broadcast       on its root, to each other member                                 (p-1) n
 *     send            all, unless to oneself; a recv sends nothing                      n */
size_t transfer_sent(const Transfer *t, int rank); /* Local. Of a transfer that is well formed. */

enum { RECORD_RANKS = 16 };
typedef struct {
    int64_t number;   /* of the transfer on this rank */
    int64_t sequence; /* of a collective in its group, the same on all members; of a send or recv
                         between its two ranks in that direction on that group */
    int32_t group;    /* serial number of the group on this rank; comm_group tells its ranks */
    int32_t instr;
    int purpose;
    CommKind kind;
    DType dtype;
    bool scalar;
    size_t bytes;                        /* of `from`; of `to` where `from` is another rank's */
    size_t sent_bytes;                   /* see above */
    double posted_s, matched_s, done_s;  /* since the comm was opened; -1: not yet */
    int32_t peer;                        /* of a send or recv; a broadcast's root; else -1 */
    int32_t n_ranks, rank[RECORD_RANKS]; /* of the group, the first of them */
} Record;

typedef struct {
    int64_t transfers;
    size_t bytes, sent_bytes;
} CommCount;

typedef struct Recorder {
    Record *ring;
    int64_t cap, total; /* records kept; records made */
    int64_t waits;      /* number of the transfer that the rank waits for, or failed to; -1: none */
    double opened_s;    /* when the comm was, on the monotonic clock */
    CommCount of_kind[N_COMM_KINDS], scalars; /* of all made; scalars are in no kind */
} Recorder;

/* Local. */
const Recorder *comm_recorder(const Comm *c);
/* Local. The record of a transfer; NULL when it is not made yet or no longer kept. The oldest kept
 * is number max(0, total - cap). */
const Record *recorder_at(const Recorder *r, int64_t number);
/* Local. The ranks of a group while it lives; n = 0 after. */
RankList comm_group(const Comm *c, int32_t group);
/* Local. "all-gather #3 over {0 1 2}, instruction 17", in `buffer`, which is returned. */
enum { RECORD_TEXT_BYTES = 192 };
const char *record_text(const Record *r, char buffer[RECORD_TEXT_BYTES]);
/* "all-gather" */
const char *comm_kind_name(CommKind kind);

#endif
