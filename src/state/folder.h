/* folder.h -- the folder of checkpoints: its layout, and the protocol that adds a checkpoint.
 *
 *     checkpoints/step-00000010/          complete: named after its manifest was written and synced
 *     checkpoints/step-00000020/          complete; a run resumes from the newest complete one
 *     checkpoints/step-00000030.tmp/      being written, or left by a crash; a new run removes it
 *     checkpoints/step-00000005.damaged/  found damaged, kept for inspection
 *     checkpoints/latest                  "step-00000020 HASH HASH\n": name, hash of its manifest,
 *                                         and hash of the line before this field
 *
 * A save has these steps:
 *
 *     1 create step-N.tmp                  each rank
 *     2 write rank-R.safetensors           each rank; the metadata contains the chunk hashes
 *     3 fsync it                           each rank
 *     4 read all headers, write manifest   rank 0, when all ranks have written
 *     5 fsync it, and the folder; fsync the run's logs up to step N
 *     6 rename step-N.tmp to step-N, fsync checkpoints/
 *     7 write latest.tmp, fsync, rename to latest, fsync checkpoints/
 *     8 remove the oldest beyond run.keep: renamed to .tmp first, so never partly present */
#ifndef STATE_FOLDER_H
#define STATE_FOLDER_H

#include "state/manifest.h"

/* Points of the protocol at which a test can kill the process, in order. */
typedef enum {
    SAVE_SNAPSHOT,      /* snapshot taken; nothing on disk */
    SAVE_FOLDER,        /* step-N.tmp created */
    SAVE_HALF,          /* half of a rank's data written */
    SAVE_DATA,          /* all of it written, not synced */
    SAVE_SYNCED,        /* and synced */
    SAVE_MANIFEST_HALF, /* half of the manifest written */
    SAVE_MANIFEST,      /* all of it, synced */
    SAVE_RENAMED,       /* step-N exists; latest does not name it yet */
    SAVE_LATEST_HALF,   /* latest.tmp half written */
    SAVE_LATEST,        /* latest names it */
    SAVE_REMOVING,      /* an old checkpoint is half removed */
    SAVE_DONE,
    N_SAVE_POINTS
} SavePoint;

/* Called at each point on each rank that passes it; at == NULL: no hook. Only cli/ installs
 * one (SHEAF_KILL_AT). */
typedef struct {
    void (*at)(void *context, SavePoint point, int rank, int64_t step);
    void *context;
} SaveHook;
const char *save_point_name(SavePoint p);
int save_point_of(const char *name); /* -1: unknown name */

typedef struct {
    int64_t step;
    char name[32]; /* "step-00000020" */
} Generation;
Generation generation_of(int64_t step);

/* Local. Lists the checkpoints with a final name, newest first, without opening them. A link to a
 * folder counts. A missing folder is empty. */
Err folder_list(const char *checkpoints, Arena *a, Generation **out, int *n);
/* Local. Reads `latest`. ERR_CHECK if the line is damaged; the hash detects any flipped byte.
 * *found is false if there is no such file. */
Err folder_latest(const char *checkpoints, Generation *out, uint64_t *manifest_hash, bool *found);
/* Local. Removes the remains of crashes (step-N.tmp, latest.tmp) before a run writes. */
Err folder_tidy(const char *checkpoints);
/* Local. Renames a damaged checkpoint and writes its new name to *out, which has 64 bytes. */
Err folder_quarantine(const char *checkpoints, const Generation *g, char *out);

/* Local. Step 1 of a save. Another rank may have created the folder already. Writes the path of
 * step-N.tmp to `path`. */
Err folder_begin(const char *checkpoints, int64_t step, char *path, size_t path_bytes);
/* Local, on rank 0 when all ranks have written: steps 4 to 8. `scalars` are for the manifest. The
 * other contents come from the headers of the ranks' files (rank-00000.safetensors and on; a rank
 * that owns nothing writes none). Step N must not exist yet. At least two generations are kept. An
 * error names the file and the reason. Before step 6 it leaves everything but step-N.tmp unchanged;
 * after it, step-N is complete. */
typedef struct {
    const char *checkpoints;
    int ranks, keep;
    const StateTensors *tensors;
    const StateScalars *scalars;
    const SaveHook *hook;
    /* Log files of the run up to this step, such as its metrics, also synced before step 6: names
     * in `run_dir`, terminated by NULL. Missing files are skipped. NULL: none. */
    const char *run_dir;
    const char *const *run_logs;
} CommitSettings;
Err folder_commit(const CommitSettings *s, Arena *temp);
/* Local. Abandons a save: removes step-N.tmp. */
Err folder_abandon(const char *checkpoints, int64_t step);

#endif
