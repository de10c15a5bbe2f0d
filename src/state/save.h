/* save.h -- writes a checkpoint while training continues.
 *
 *     step N ends    saver_begin: copies the boxes that the rank owns to its snapshot      (blocks)
 *     step N+1 ...   the writer thread hashes, writes and syncs them               (does not block)
 *     a later step   all ranks have written: rank 0's writer commits (folder.h)
 *
 * The writer thread only touches the snapshot and the disk. Ranks learn each other's progress from
 * the sums that the loop reduces after each step, so saving adds no transfers. No rank holds the
 * whole model. The snapshot is part of the run's memory, which is counted before it starts. */
#ifndef STATE_SAVE_H
#define STATE_SAVE_H

#include "run/rank.h"
#include "state/folder.h"

typedef enum {
    SAVER_IDLE,
    SAVER_WRITING,
    SAVER_WRITTEN, /* this rank's file is on disk */
    SAVER_COMMITTING,
    SAVER_COMMITTED,
    SAVER_FAILED /* see saver_error */
} SaverState;

/* The memory that saves need. */
typedef enum {
    SAVE_MEMORY_NONE,    /* nothing is saved */
    SAVE_MEMORY_BUFFER,  /* written from the state, which must not change until SAVER_WRITTEN */
    SAVE_MEMORY_SNAPSHOT /* written from a copy of everything that the rank owns */
} SaveMemory;
/* `every`: steps between saves; 0: only after the last, when the state no longer changes. */
static inline SaveMemory save_memory(int64_t every)
{
    return every > 0 ? SAVE_MEMORY_SNAPSHOT : SAVE_MEMORY_BUFFER;
}

typedef struct {
    const Rank *rank;
    const char *checkpoints; /* an existing folder */
    int ranks, keep;
    SaveMemory memory; /* not SAVE_MEMORY_NONE */
    SaveHook hook;
    const char *run_dir; /* and `run_logs`: see CommitSettings; both must outlive the saver */
    const char *const *run_logs;
} SaverSettings;

typedef struct Saver Saver;

/* Local. Returns the bytes that saves need on a rank of the program's mesh. */
Err saver_bytes(const LinkedProgram *lp, int rank, SaveMemory memory, Arena *temp, int64_t *out);
/* Local. Allocates from the arena and starts the writer thread. */
Err saver_open(const SaverSettings *s, Arena *a, Saver **out);
/* Local. Waits for the writer thread to end. A save that is not committed stays step-N.tmp. */
void saver_close(Saver *s);

/* Local, only in state IDLE; copies scalars. With a snapshot, the state may change once
 * it returns. */
Err saver_begin(Saver *s, const StateScalars *scalars);
/* Local. Does not block. */
SaverState saver_poll(const Saver *s);
/* Local, on rank 0, in state WRITTEN when all ranks are: the writer thread commits. */
void saver_commit(Saver *s);
/* Local, on all ranks: from COMMITTED, WRITTEN or FAILED to IDLE. If `failed`, rank 0 removes the
 * incomplete checkpoint. */
Err saver_end(Saver *s, bool failed);
/* Local, for the latest save: the error message, the bytes written, the seconds that
 * begin blocked. */
const char *saver_error(const Saver *s);
int64_t saver_written(const Saver *s);
double saver_blocked_s(const Saver *s);

#endif
