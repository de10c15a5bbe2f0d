/* save_file.h -- the file that a rank writes: the boxes that it owns, in file order. For save.c.
 *
 *     file       header | box 0 | box 1 | box 2 ...
 *     snapshot            the same bytes, copied when the step ends
 *     chunks             0   1 | 0     | 0   1   2 ...       hashed and copied one by one */
#ifndef STATE_SAVE_FILE_H
#define STATE_SAVE_FILE_H

#include "run/rank.h"
#include "state/folder.h"

typedef struct {
    StateTensors tensors;
    StateParts parts;      /* owned by the rank */
    ManifestPart *in_file; /* [parts.n]: the same; offsets are set by rank_file_layout */
    int64_t *at;           /* [parts.n + 1]: offsets from the beginning of the data, in bytes */
    int64_t *first;        /* [parts.n + 1]: number of the first chunk */
    uint64_t *hash;        /* [chunks] */
    char *snapshot;        /* NULL: none; data is read from the rank's homes */
    char *buffer;          /* used then, SAVE_BUFFER_BYTES */
} SaveParts;

enum { SAVE_WRITE_BYTES = 8 << 20, SAVE_BUFFER_BYTES = SAVE_WRITE_BYTES + CHUNK_BYTES };

/* Local. Lists what a rank of the mesh writes, without snapshot and buffer. The data has
 * at[parts.n] bytes. The linked program may be another rank's. */
Err save_parts_open(SaveParts *p, const LinkedProgram *lp, int rank, Arena *a);
/* Local. Copies the rank's current state to the snapshot. */
Err save_parts_copy(const SaveParts *p, const Rank *r);

typedef struct {
    const Rank *rank;
    const char *checkpoints;
    int64_t step;
    const SaveHook *hook;
    Arena *temp;
} SaveFile;

/* Local. Creates the folder, writes the rank's file and syncs it. A rank that owns nothing writes
 * no file. *written: bytes of the file. */
Err save_file_write(SaveParts *p, const SaveFile *f, int64_t *written);
/* Local. Calls the hook, if there is one. */
void save_point(const SaveFile *f, SavePoint point);

#endif
