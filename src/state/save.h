/* save.h -- writing a checkpoint while training goes on.
 *
 *     step N ends    saver_begin: the boxes that the rank owns are copied to its snapshot   (blocks)
 *     step N+1 ...   a thread of its own hashes and writes them, syncs                      (does not)
 *     some step      all ranks have written: rank 0's thread commits (folder.h)
 *
 * The thread touches the snapshot, the disk and nothing else; ranks learn of each other by what the
 * loop adds up after each step, so there is no transfer besides. No rank sees the whole model. The
 * snapshot is memory of the run like any other: counted before it starts. */
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
    SAVER_FAILED /* saver_error tells */
} SaverState;

/* What a save takes of memory. */
typedef enum {
    SAVE_MEMORY_NONE, /* nothing is saved */
    SAVE_MEMORY_BUFFER, /* written from the state itself, which must not change until saver_poll says so */
    SAVE_MEMORY_SNAPSHOT /* from a copy of all that the rank owns */
} SaveMemory;
/* Of a run that saves every so many steps; 0: after the last alone, and nothing changes then. */
static inline SaveMemory save_memory(int64_t every)
{
    return every > 0 ? SAVE_MEMORY_SNAPSHOT : SAVE_MEMORY_BUFFER;
}

typedef struct {
    const Rank *rank;
    const char *checkpoints; /* folder; is there */
    int ranks, keep;
    SaveMemory memory; /* not none */
    SaveHook hook;
    const char *run_dir; /* with `lines`: as CommitSettings has them; both outlive the saver */
    const char *const *run_logs;
} SaverSettings;

typedef struct Saver Saver;

/* Local. Bytes that saves of a rank take, of any that the program's mesh has. */
Err saver_bytes(const LinkedProgram *lp, int rank, SaveMemory memory, Arena *temp, int64_t *out);
/* Local. Memory from the arena; starts the thread. */
Err saver_open(const SaverSettings *s, Arena *a, Saver **out);
/* Local. Waits for the thread and ends it; what is not committed stays step-N.tmp. */
void saver_close(Saver *s);

/* Local. When it returns, the state may change (with a snapshot). Only from IDLE. scalars is
 * copied. */
Err saver_begin(Saver *s, const StateScalars *scalars);
/* Local. Does not block. */
SaverState saver_poll(const Saver *s);
/* Local, on rank 0, from WRITTEN when all ranks are: the thread commits. */
void saver_commit(Saver *s);
/* Local, on all ranks: from COMMITTED, WRITTEN or FAILED to IDLE. Rank 0 removes what was half done
 * when `failed`. */
Err saver_end(Saver *s, bool failed);
/* Local. The message of a failure; bytes written and seconds that begin blocked, of the latest
 * save. */
const char *saver_error(const Saver *s);
int64_t saver_written(const Saver *s);
double saver_blocked_s(const Saver *s);

#endif
