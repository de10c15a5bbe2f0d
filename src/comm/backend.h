/* backend.h -- what a comm is made of; for the files of this folder and its backends.
 *
 *     comm_begin:  check.c -> group and sequence -> record -> table->begin
 *     comm_wait:   ticket  -> table->wait -> record -> slot free again
 *
 * A backend moves bytes and says when a transfer was matched and when it was done; what holds for
 * all of them is done once, above the table. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm/comm.h"

typedef enum { POSTED, MATCHED, DONE } Progress;

typedef struct {
    bool busy;
    Transfer t;
    int64_t number, sequence;
    int32_t group; /* serial */
    Progress progress;
} Pending;

typedef struct {
    const char *name;
    /* The slot is filled and checked. An error takes the transfer back. */
    Err (*begin)(Comm *c, int slot);
    /* OK only when progress is DONE. */
    Err (*wait)(Comm *c, int slot);
    void (*close)(Comm *c);
} CommTable;

typedef struct {
    int32_t serial; /* -1: free */
    int purpose, in_flight;
    int n, cap; /* ranks; room for ranks, which the row keeps when the group ends */
    int32_t *rank;
    int64_t next; /* sequence number of the next transfer */
} GroupRow;

enum { MAX_GROUPS = 256, TRANSFER_NAME_BYTES = 160 };

struct Comm {
    const CommTable *table;
    void *state; /* the backend's */
    CommSettings set;
    Arena *arena;
    struct {
        char *base;
        size_t bytes;
    } memory[MAX_COMM_ARENAS];
    GroupRow group[MAX_GROUPS];
    int32_t groups_made;
    Pending *pending; /* [set.in_flight] */
    Recorder recorder;
    double opened_s;
};

/* Local. The common part, in the arena; the backend has opened its state. */
Err comm_open(Arena *a, const CommSettings *set, const CommTable *table, void *state, Comm **out);
/* Local. Moves the transfer on and notes when. */
void comm_progress(Comm *c, int slot, Progress progress);
/* Local. Address of a Ref of this rank, which was checked. */
void *comm_at(const Comm *c, const Ref *r);
static inline size_t ref_bytes(const Ref *r) { return (size_t)r->count * dtype_bytes(r->dtype); }

/* group.c. Local. The row of a group, opened when it is new. */
Err group_of(Comm *c, RankList ranks, int purpose, GroupRow **out);
GroupRow *group_find(Comm *c, RankList ranks, int purpose);
GroupRow *group_serial(Comm *c, int32_t serial);
/* Place of a rank in the list, or -1. */
int group_place(RankList group, int rank);

/* check.c. Local. ERR_CHECK unless the transfer is well formed on this rank; `sequence` is for the
 * message. */
Err transfer_check(const Comm *c, const Transfer *t, int64_t sequence);
/* "all-gather #3 over {0 1 2}, instruction 17" */
const char *transfer_name(const Transfer *t, int64_t sequence, char name[TRANSFER_NAME_BYTES]);
/* Are `from` and `to` memory of this rank in this transfer? */
bool transfer_reads(const Transfer *t, int rank);
bool transfer_writes(const Transfer *t);

#endif
