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
 * A Comm belongs to one rank and is used by one thread. Every transfer passes its recorder. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/dtype.h"
#include "base/err.h"

enum { MAX_COMM_ARENAS = 32 };

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
} Transfer;

typedef struct {
    int slot;
    int64_t number;
} Ticket;

typedef struct Comm Comm;

/* A hostile comm completes a transfer when it begins or only when it is waited for, by a seeded
 * coin, and until then `to` is full of 0xFF, which is NaN in every float type. So code that reads
 * before it waits is caught. */
typedef struct {
    int rank, ranks;
    int in_flight;   /* most transfers begun and not waited for */
    int64_t records; /* that the recorder keeps */
    bool hostile;    /* for tests, see above */
    uint64_t seed;   /* of its coin */
} CommSettings;

/* Local. */
void comm_close(Comm *c);
int comm_rank(const Comm *c);
int comm_ranks(const Comm *c);
/* Local. The id must mean the same on every rank. Registering again replaces; the memory must
 * outlive the transfers that name it. ERR_CHECK for an id out of range. */
Err comm_register(Comm *c, int arena, void *base, size_t bytes);

/* Collective over the group (for sends and receives: over the pair). ERR_CHECK names the transfer,
 * the arena, the offset and the limit. */
Err comm_begin(Comm *c, const Transfer *t, Ticket *out);
/* Local; returns once `to` may be read and `from` be written. ERR_CHECK for a transfer that can
 * never complete, and for a ticket waited for twice. */
Err comm_wait(Comm *c, Ticket ticket);
/* Collective likewise: begin, then wait. */
Err comm_do(Comm *c, const Transfer *t);
/* Local. ERR_CHECK names the oldest transfer that was begun and not waited for. */
Err comm_idle(const Comm *c);
/* Collective over the group: forget it, for groups that live for one step. ERR_CHECK while it has
 * transfers in flight. A group never used is nothing to forget. */
Err comm_group_end(Comm *c, RankList group, int purpose);

/* ---- the recorder ---- */

typedef struct {
    int64_t number;   /* of the transfer on this rank */
    int64_t sequence; /* of the transfer in its group; for collectives the same on all members */
    int32_t group;    /* serial number of the group on this rank; comm_group tells its ranks */
    int32_t instr;
    CommKind kind;
    DType dtype;
    size_t bytes;                       /* of `from`; of `to` where `from` is another rank's */
    double posted_s, matched_s, done_s; /* since the comm was opened; -1: not yet */
} Record;

typedef struct {
    Record *ring;
    int64_t cap, total; /* records kept; records made */
} Recorder;

/* Local. */
const Recorder *comm_recorder(const Comm *c);
/* Local. The record of a transfer; NULL when it is not made yet or no longer kept. The oldest kept
 * is number max(0, total - cap). */
const Record *recorder_at(const Recorder *r, int64_t number);
/* Local. The ranks of a group while it lives; n = 0 after. */
RankList comm_group(const Comm *c, int32_t group);
/* "all-gather" */
const char *comm_kind_name(CommKind kind);

#endif
