/* comm.h -- transfers between ranks.
 *
 * Memory is named, not pointed to: a Ref is (rank, arena, offset), and each rank registers its
 * arenas. A transfer is therefore plain data: it can be printed, checked and simulated, and means
 * the same on every rank.
 *
 *     Transfer t = {.kind = COMM_ALL_GATHER, .group = tp, .instr = 17,
 *                   .from = {rank, ARENA_WORK, 4096, 1024, F32},
 *                   .to = {rank, ARENA_WORK, 8192, 4096, F32}};
 *     TRY(comm_begin(comm, &t, &ticket));    ... other work; neither from nor to is touched ...
 *     TRY(comm_wait(comm, ticket));
 *
 * A group is a list of ranks and a purpose; the first transfer that names it opens it. All its
 * members must begin the same collectives on it in the same order: the n-th of each member match.
 * The n-th send from a to b on a group matches the n-th receive on b from a. Transfers of different
 * groups are matched independently. comm_begin refuses transfers whose fault one rank can detect.
 *
 * Reductions are left folds in the order of the group, element by element, in the value's own type;
 * bf16 is folded in f32 and rounded once. The result depends on neither arrival nor timing. A
 * maximum over a NaN is NaN; sums of integers wrap. Sums by NCCL are the exception: NCCL chooses
 * the order and the number of roundings (comm/nccl.h).
 *
 * comm_begin does not block. A transfer makes progress while any member waits or polls. A wait
 * advances all transfers that its rank has begun, so ranks may wait in different orders.
 *
 * A rank that fails aborts the comms of all ranks: every wait on every rank ends with ERR_PEER and
 * the first error's message. After ERR_PEER no other rank accesses this rank's memory, and no
 * transfer can begin.
 *
 * Device memory (device/runtime.h) is registered as such. A transfer of it reads `from` and writes
 * `to` after all work that is in the rank's compute queue when it begins. A wait makes the compute
 * queue wait, not the host. To wait on the host, call comm_sync.
 *
 *     compute  | ... from is made | e0     other kernels      wait e1 | to is read ...
 *     comm     |              wait e0 | the rank's share | e1
 *
 * A Comm belongs to one rank and is used by one thread; no function here is thread-safe for two
 * threads on one Comm. Its recorder has a record of every transfer. */
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
 * schedule/link/link.h, then the mailbox; a second program follows the first). Modules that
 * transfer memory of their own have one id each, after those. */
enum {
    MAX_PROGRAM_ARENAS = 28,
    ARENA_REPLICAS = MAX_PROGRAM_ARENAS, /* train/replicas.c: hashes of replicated state */
    ARENA_LOOP,                          /* train/step.c: sums over the ranks of a step */
    ARENA_LOAD,                          /* state/load.c: chunks of a checkpoint */
    ARENA_SCORES,                        /* infer/score.c: losses of sequences */
    ARENA_CHOICE,                        /* infer/generate.c: sampled tokens */
    ARENA_OFFERS,                        /* world/transport.c: transports that ranks have */
    ARENA_NUMBERS,                       /* world/world.c: numbers that must be equal */
    ARENA_GRAPHS,                        /* run/capture.c: whether ranks launch a graph */
    MAX_COMM_ARENAS
};

typedef struct {
    int rank;
    int arena;
    size_t offset;
    int64_t count; /* elements; 0 is legal, and still a transfer that must match its peers' */
    DType dtype;
} Ref;

/* A share is a member's part of a buffer that is split over the group: by counts, or equally. */
typedef enum {
    COMM_SEND,           /* sends `from` to rank to.rank; other fields of `to` are ignored */
    COMM_RECV,           /* receives `to` from rank from.rank; other fields of `from` are ignored */
    COMM_ALL_REDUCE,     /* to = from of all members, folded in the order of the group */
    COMM_ALL_GATHER,     /* to = from of all members, back to back; shares of `to`: to_counts */
    COMM_REDUCE_SCATTER, /* to = this rank's share of the folded from; its shares: from_counts */
    COMM_ALL_TO_ALL,     /* share i of from goes to member i; counts of both sides, or of neither */
    COMM_BROADCAST,      /* to = from of rank from.rank; other ranks ignore its other fields */
    N_COMM_KINDS
} CommKind;

typedef enum { REDUCE_SUM, REDUCE_MAX } Reduce;

/* A transfer is "in place" if `from` is stored in `to` exactly where its elements end up (`to` in
 * `from` for a reduce-scatter). Other overlaps are refused; an all-to-all has no in-place form. The
 * lists are the caller's and must live until the wait. */
typedef struct {
    CommKind kind;
    Reduce reduce;
    RankList group;
    int purpose; /* groups of the same ranks with different purposes are different groups */
    Ref from, to;
    const int64_t *from_counts, *to_counts; /* [group.n] elements per member, or NULL: all equal */
    int32_t instr;                          /* instruction, for messages and for the recorder */
    int64_t tag;                            /* names the payload; must be equal on all members */
    bool scalar; /* a norm, a loss, an agreement: the recorder counts it separately */
} Transfer;

/* A transfer in flight, for comm_wait. */
typedef struct {
    int slot;       /* index among the transfers in flight */
    int64_t number; /* of the transfer on this rank: Record.number */
} Ticket;

typedef struct Comm Comm;

/* Settings of a rank's comm.
 *
 * A hostile comm completes each transfer either as early as it can or only when it is waited for,
 * at random. Until then `to` is filled with 0xFF, which is NaN in every float type. Late transfers
 * are also posted after a random delay. Tests use it to catch code that reads before it waits, and
 * to vary the order of arrival. */
typedef struct {
    int rank, ranks;
    int in_flight;    /* maximum number of transfers begun and not waited for */
    int64_t records;  /* number of records that the recorder keeps */
    bool hostile;     /* for tests, see above */
    uint64_t seed;    /* of a hostile comm's random choices */
    double timeout_s; /* a longer wait is an error with a report of all waits; 0: no limit */
    /* Emulates a slower network: a transfer between ranks completes no earlier than delay_s, plus
     * its bytes at delay_Bps, after its last member began it and after the transfer before it, of
     * this group and purpose, completed. The waiting rank sleeps. 0: no delay. */
    double delay_s, delay_Bps;
    /* The time of a delay starts when this rank notices, in a call of its comm, that all members
     * have begun: a network that moves nothing while its hosts compute. False: with the last
     * begin. */
    bool delay_noticed;
    bool staged; /* device memory is staged through the host even if it need not be: for tests */
    /* Has room for `records` in its ring; its memory may be shared between processes and outlives
     * the comm. NULL: the comm allocates its own. */
    struct Recorder *recorder;
} CommSettings;

/* Local. */
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Local. The id must mean the same on every rank. Registering an id again replaces its memory,
 * which must outlive the transfers that name it. ERR_CHECK for an id out of range. */
Err comm_register(Comm *c, int arena, void *base, size_t bytes);

/* The device of a rank: its runtime table, and the rank's context on it. */
typedef struct {
    const DeviceRuntime *runtime;
    DeviceContext *context;
} CommDevice;

/* Local. As comm_register, for memory of the device, or of the host if the device sees it at the
 * same address. ERR_CHECK for a second context while transfers are in flight: a comm has one
 * context at a time. */
Err comm_register_device(Comm *c, int arena, void *base, size_t bytes, CommDevice device);
/* Local. Frees events, queues and buffers that the comm has on the device; call it before the
 * context is closed. No transfer of device memory may be in flight. */
void comm_release_device(Comm *c);
/* Collective over all ranks, before device memory is transferred over these groups. Every member of
 * a group names it; groups of earlier calls stay open. Reads only kind, group, purpose,
 * for sends and receives the two ranks, and for maxima the output of each transfer. NCCL opens its
 * communicators and allocates its memory here; other transports do nothing. */
Err comm_prepare(Comm *c, const Transfer *t, int n);
/* Collective over all ranks, for ranks that are threads with NCCL; else it does nothing. Returns
 * when no transfer is on any device. A CUDA call that allocates, frees or loads code may wait for
 * all kernels of the GPU, and blocks the launches of other ranks meanwhile: if one of those kernels
 * is a transfer with such a rank, neither ends. */
Err comm_quiet(Comm *c);
/* Local. The host waits until a queue of the device is empty, as the runtime's sync does. Unlike
 * sync it ends with ERR_PEER if a transfer in the queue fails or lasts longer than timeout_s. */
Err comm_sync(Comm *c, CommDevice device, DeviceQueue *q);
/* Communicators of the device transport and their device memory, without registered buffers. */
typedef struct {
    int channels;  /* communicators of NCCL */
    int64_t bytes; /* of all; -1: the library cannot tell (NCCL before 2.30) */
} CommDeviceUse;
/* Local. */
CommDeviceUse comm_device_use(const Comm *c);
/* Local. "nccl", "mpi", "local": the transport of device memory. */
const char *comm_transport_name(const Comm *c);
/* Local. True if kernels on the device wait for other ranks: NCCL moves device memory. */
bool comm_waits_on_device(const Comm *c);
/* Local. True if device memory is staged through host memory here, because the backend handles only
 * host memory. */
bool comm_is_staged(const Comm *c);

/* Collective over the group (for sends and receives: over the pair). ERR_CHECK names the transfer,
 * the arena, the offset and the limit. */
Err comm_begin(Comm *c, const Transfer *t, Ticket *out);
/* Local, but blocks until the other members have begun the transfer; returns once `to` may be read
 * and `from` be written. ERR_CHECK for a transfer that can never complete, for one on whose
 * signature its members do not agree, and for a ticket that was waited for before. ERR_PEER if
 * another rank failed or did not arrive within timeout_s. */
Err comm_wait(Comm *c, Ticket ticket);
/* Local; does not block. Advances every transfer in flight by a bounded amount of work. Ranks call
 * it between instructions. */
Err comm_poll(Comm *c);
/* Collective as comm_begin: begin, then wait. */
Err comm_do(Comm *c, const Transfer *t);
/* Local. ERR_CHECK names the oldest transfer that was begun and not waited for. */
Err comm_idle(const Comm *c);
/* Collective over the group: closes it, for groups that live for one step. ERR_CHECK while it has
 * transfers in flight. A group that was never used is not an error. */
Err comm_group_end(Comm *c, RankList group, int purpose);
/* Local. Reports that this rank failed: cancels its transfers in flight and ends every wait of
 * every rank. The first of several failures counts. */
void comm_abort(Comm *c, Err err, const char *message);
/* Collective over the group: agrees on an error code. OK if all members pass OK; else, on all
 * members, the error of the lowest rank that has one, with its message (that thread's err_text) and
 * its rank. */
Err comm_agree(Comm *c, RankList group, Err mine);

/* ---- the recorder ---- */

/* ---- graphs of a device (DeviceGraphs) ---- */

/* Local, between steps. From now on the records of transfers of device memory by NCCL have the
 * times at which these began and ended on the device, in matched_s and done_s, for a trace: after
 * comm_times_end. Up to `n` transfers of a step are timed. Other transports do nothing. */
Err comm_times_open(Comm *c, int n);
/* Local, at the start of a step; after it, when the host has waited for the compute queue. */
Err comm_times_begin(Comm *c);
Err comm_times_end(Comm *c);
/* Local. Between on and off, transfers of device memory by NCCL are matched and put into the graph
 * that the device captures; they run when it is launched, without the comm. All members of a group
 * capture together, and launch together from then on. */
void comm_capture(Comm *c, bool on);
/* Local. Graphs that contain transfers are closed before the communicators are, also after a
 * failure: `drop(arg)` does that, once. drop NULL: that owner has none any more. At most
 * MAX_GRAPH_OWNERS have graphs. */
enum { MAX_GRAPH_OWNERS = 8 };
void comm_graphs(Comm *c, void (*drop)(void *arg), void *arg);
/* Local. A graph with transfers was launched. */
void comm_launched(Comm *c);

/* Local. Bytes that leave this rank if each element is sent directly to the ranks that need it.
 * This is the minimum, the same for every backend, and exact. Requires a transfer that has passed
 * the checks of comm_begin. For p members and n elements of `from`:
 *
 *     kind            sent by this rank                                       by the whole group
 *     all-reduce      the array but its segment to the segments' owners;      2 (p-1) n
 *                     its reduced segment to the others (n split over the
 *                     members, the first n mod p one longer)
 *     all-gather      its `from` to each other member                         (p-1) sum of n
 *     reduce-scatter  all shares but its own                                  (p-1) n
 *     all-to-all      all shares but its own
 *     broadcast       on the root: `from` to each other member                (p-1) n
 *     send            `from`, unless it is sent to this rank itself           n
 *     recv            nothing                                                 0 */
size_t transfer_sent(const Transfer *t, int rank);

enum { RECORD_RANKS = 16 };
typedef struct {
    int64_t number;   /* of the transfer on this rank */
    int64_t sequence; /* collectives: in the group, equal on all members; sends and receives: in the
                         group, between the two ranks, in that direction */
    int32_t group;    /* serial number of the group on this rank; comm_group returns its ranks */
    int32_t instr;
    int purpose;
    CommKind kind;
    DType dtype;
    bool scalar;
    size_t bytes;                        /* of `from`; of `to` if `from` is another rank's */
    size_t sent_bytes;                   /* transfer_sent */
    double posted_s, matched_s, done_s;  /* since the comm was opened; -1: not yet */
    bool timed;                          /* matched_s and done_s are of the device */
    int32_t peer;                        /* of a send or receive; a broadcast's root; else -1 */
    int32_t n_ranks, rank[RECORD_RANKS]; /* of the group; its first RECORD_RANKS ranks */
} Record;

typedef struct {
    int64_t transfers;
    size_t bytes, sent_bytes;
} CommCount;

/* Written by the rank's own thread only. Other processes may read it at any time through shared
 * memory; a record that is being written may then be torn. */
typedef struct Recorder {
    Record *ring;
    int64_t cap, total; /* records kept; records made */
    int64_t waits;      /* number of the transfer that the rank waits for, or failed in; -1: none */
    double opened_s;    /* time when the comm was opened, on the monotonic clock */
    CommCount of_kind[N_COMM_KINDS], scalars; /* of all made; scalars are in no kind */
} Recorder;

/* Numbers of transfers, as the recorder sums them. */
typedef struct {
    CommCount of_kind[N_COMM_KINDS], scalars;
} CommTotals;

/* Local. */
const Recorder *comm_recorder(const Comm *c);
/* Local. The sums of all transfers so far. */
CommTotals comm_totals(const Comm *c);
/* Local. Counts the transfers between two totals again: a graph that contains them is launched. */
void comm_repeat(Comm *c, const CommTotals *from, const CommTotals *to);
/* Local. The record of a transfer; NULL if it is not made yet or no longer kept. The oldest kept is
 * number max(0, total - cap). */
const Record *recorder_at(const Recorder *r, int64_t number);
/* Local. The ranks of a group while it is open; n = 0 after. */
RankList comm_group(const Comm *c, int32_t group);
/* Local. "all-gather #3 over {0 1 2}, instruction 17", in `buffer`, which is returned. */
enum { RECORD_TEXT_BYTES = 192 };
const char *record_text(const Record *r, char buffer[RECORD_TEXT_BYTES]);
/* Local. "all-gather" */
const char *comm_kind_name(CommKind kind);

#endif
