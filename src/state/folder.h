/* folder.h -- the folder of checkpoints: what is whole in it, and how one more gets there.
 *
 *     checkpoints/step-00000010/          whole: it has its name only since its manifest is on disk
 *     checkpoints/step-00000020/          likewise; the newest whole one is what a run goes on from
 *     checkpoints/step-00000030.tmp/      being written, or left by a crash: removed when a run starts
 *     checkpoints/step-00000005.damaged/  found damaged, kept for whoever wants to look
 *     checkpoints/latest                  "step-00000020 HASH HASH\n": name, hash of its manifest, and
 *                                         the hash of what stands before it in the line
 *
 * A save:  1 make step-N.tmp                    each rank
 *          2 write rank-R.safetensors           each rank; hashes of chunks are in its metadata
 *          3 fsync it                           each rank
 *          4 read all headers, write manifest   rank 0, when all ranks have written
 *          5 fsync it, and the folder; fsync the run's lines up to step N
 *          6 rename step-N.tmp to step-N, fsync checkpoints/
 *          7 write latest.tmp, fsync, rename to latest, fsync checkpoints/
 *          8 remove the oldest beyond run.keep: renamed to .tmp first, so never half there */
#ifndef STATE_FOLDER_H
#define STATE_FOLDER_H

#include "state/manifest.h"

/* Where a test may have the process killed, in the order of the protocol. */
typedef enum {
    SAVE_SNAPSHOT,      /* taken; nothing is on disk */
    SAVE_FOLDER,        /* step-N.tmp is made */
    SAVE_HALF,          /* half of a rank's data is written */
    SAVE_DATA,          /* all of it, not synced */
    SAVE_SYNCED,        /* and synced */
    SAVE_MANIFEST_HALF, /* half of the manifest is written */
    SAVE_MANIFEST,      /* all of it, synced */
    SAVE_RENAMED,       /* step-N is there; latest is not it */
    SAVE_LATEST_HALF,   /* latest.tmp is half written */
    SAVE_LATEST,        /* latest names it */
    SAVE_REMOVING,      /* an old one is half removed */
    SAVE_DONE,
    N_SAVE_POINTS
} SavePoint;

/* Called at each point on each rank that passes it; NULL: nobody. cli/ alone makes one
 * (SHEAF_KILL_AT). */
typedef struct {
    void (*at)(void *context, SavePoint point, int rank, int64_t step);
    void *context;
} SaveHook;
const char *save_point_name(SavePoint p);
int save_point_of(const char *name); /* -1: none */

typedef struct {
    int64_t step;
    char name[32]; /* "step-00000020" */
} Generation;
Generation generation_of(int64_t step);

/* Local. Checkpoints that have their final name, newest first; looks into none of them. A folder
 * that is not there is empty. */
Err folder_list(const char *checkpoints, Arena *a, Generation **out, int *n);
/* Local. What `latest` says. ERR_CHECK when it is damaged: a flipped byte is named; *found false:
 * none. */
Err folder_latest(const char *checkpoints, Generation *out, uint64_t *manifest_hash, bool *found);
/* Local. Before a run starts to write: removes what crashes left (step-N.tmp, latest.tmp). */
Err folder_tidy(const char *checkpoints);
/* Local. Gives a damaged one another name, which *out, of 64 bytes, tells. */
Err folder_quarantine(const char *checkpoints, const Generation *g, char *out);

/* Local. Step 1 of a save; it may be there already, made by another rank. The path of step-N.tmp. */
Err folder_begin(const char *checkpoints, int64_t step, char *path, size_t path_bytes);
/* Local, on rank 0 when all ranks have written. Steps 4 to 8. `scalars` for the manifest; the
 * headers of the ranks' files (rank-00000.safetensors on; ranks that own nothing write none) tell
 * the rest. Step N must not be there yet. At least two generations are kept. An error names the file
 * and the reason; before step 6 it leaves all but step-N.tmp as it was, behind it step-N is whole. */
typedef struct {
    const char *checkpoints;
    int ranks, keep;
    const StateTensors *tensors;
    const StateScalars *scalars;
    const SaveHook *hook;
    /* Files that tell of the steps up to this one, as the run's metrics: on the disk too before step 6.
     * Names in `beside`, NULL behind the last; one that is not there is left out. NULL: none. */
    const char *run_dir;
    const char *const *run_logs;
} CommitSettings;
Err folder_commit(const CommitSettings *s, Arena *temp);
/* Local. Gives up a save: removes step-N.tmp. */
Err folder_abandon(const char *checkpoints, int64_t step);

#endif
