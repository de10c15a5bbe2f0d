/* rank_file.h -- one rank's file of a checkpoint: a safetensors file whose tensors are boxes.
 *
 *     "NAME.ROLE@7,0": {"dtype": "F32", "shape": [1, 4], ...}     the box [7, 8) x [0, 4) of NAME
 *     "__metadata__": {"format": "sheaf checkpoint 1", "step": "20", "rank": "3",
 *                      "chunk_bytes": "4194304", "hashes": "0123456789abcdef ..."}
 *
 * `hashes` has the hash of each chunk (tensors.h) of each box, in the order in which they lie. It is
 * as long whatever the hashes are: so the header's length is known before the data is written, and
 * the header itself is written after.
 *
 *     RankFile f = {.step = 20, .rank = 3, .n = n, .part = part};       tensor, box of each
 *     rank_file_layout(tensors, &f, temp)                                   now at, and f.bytes
 *     ... write data at part[i].at, hash chunks ...
 *     rank_file_header(tensors, &f, arena, &head, &head_bytes)           written at 0 */
#ifndef STATE_RANK_FILE_H
#define STATE_RANK_FILE_H

#include "state/manifest.h"

typedef struct {
    int64_t step;
    int rank;
    int64_t n;
    ManifestPart *part;   /* back to back, in the order of the file; `file` is not looked at */
    int64_t data_at;      /* of the first part, in the file: the length of the header */
    int64_t bytes;        /* of the file */
    uint64_t header_hash; /* known when it is read */
} RankFile;

enum { RANK_FILE_NAME_BYTES = 32 };
/* Local. "rank-00003.safetensors" */
void rank_file_name(int rank, char *out);

/* Local. Bytes of a part. */
int64_t rank_file_part_bytes(const StateTensors *t, const ManifestPart *p);
/* Local. How many hashes a part has. */
int64_t rank_file_part_chunks(const StateTensors *t, const ManifestPart *p);

/* Local. Where each part lies, and how long header and file will be. */
Err rank_file_layout(const StateTensors *t, RankFile *f, Arena *temp);
/* Local. The header of a file that was laid, with its hashes: data_at bytes. */
Err rank_file_header(const StateTensors *t, const RankFile *f, Arena *a, const char **head,
                     size_t *bytes);
/* Local. From a header alone. ERR_CHECK when it is not a rank's file, or of other tensors. */
Err rank_file_read(const char *path, const StateTensors *t, Arena *a, RankFile *out);

#endif
