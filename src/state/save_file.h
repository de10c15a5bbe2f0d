/* save_file.h -- what a rank writes: the boxes that it owns, as they lie in its file. For save.c.
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
    StateParts parts;      /* that the rank owns */
    ManifestPart *in_file; /* [parts.n]: the same; where they lie, from when a file is laid */
    int64_t *at;           /* [parts.n + 1]: from the data's beginning on, in bytes */
    int64_t *first;        /* [parts.n + 1]: number of the first chunk */
    uint64_t *hash;        /* [chunks] */
    char *snapshot;        /* NULL: there is none, and data is taken from the rank's homes */
    char *buffer;          /* then, of SAVE_BUFFER_BYTES */
} SaveParts;

enum { SAVE_WRITE_BYTES = 8 << 20, SAVE_BUFFER_BYTES = SAVE_WRITE_BYTES + CHUNK_BYTES };

/* Local. What a rank of the mesh writes: all but the snapshot and the buffer; data is at[parts.n]
 * bytes. The linked program may be another rank's. */
Err save_parts_open(SaveParts *p, const LinkedProgram *lp, int rank, Arena *a);
/* Local. The rank's state as it is now. */
Err save_parts_copy(const SaveParts *p, const Rank *r);

typedef struct {
    const Rank *rank;
    const char *checkpoints;
    int64_t step;
    const SaveHook *hook;
    Arena *temp;
} SaveFile;

/* Local. Makes the folder, writes the rank's file and syncs it; nothing is written where the rank
 * owns nothing. *written: bytes of the file. */
Err save_file_write(SaveParts *p, const SaveFile *f, int64_t *written);
/* Local. Tells the hook, if there is one. */
void save_point(const SaveFile *f, SavePoint point);

#endif
