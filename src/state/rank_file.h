/* rank_file.h -- the checkpoint file of one rank: a safetensors file whose tensors are boxes.
 *
 *     "NAME.ROLE@7,0": {"dtype": "F32", "shape": [1, 4], ...}     the box [7, 8) x [0, 4) of NAME
 *     "__metadata__": {"format": "sheaf checkpoint 1", "step": "20", "rank": "3",
 *                      "chunk_bytes": "4194304", "hashes": "0123456789abcdef ..."}
 *
 * `hashes` contains the hash of each chunk (tensors.h) of each box, in file order. Its length does
 * not depend on the hashes. So the length of the header is known before the data is written, and
 * the header itself is written last.
 *
 *     RankFile f = {.step = 20, .rank = 3, .n = n, .part = part};       tensor and box of each
 *     rank_file_layout(tensors, &f, temp)                               sets part[i].at and f.bytes
 *     ... write data at part[i].at, hash chunks ...
 *     rank_file_header(tensors, &f, arena, &head, &head_bytes)          written at 0 */
#ifndef STATE_RANK_FILE_H
#define STATE_RANK_FILE_H

#include "state/manifest.h"

typedef struct {
    int64_t step;
    int rank;
    int64_t n;
    ManifestPart *part;   /* contiguous, in file order; `file` is not used */
    int64_t data_at;      /* offset of the first part: the length of the header */
    int64_t bytes;        /* of the file */
    uint64_t header_hash; /* set by rank_file_read */
} RankFile;

enum { RANK_FILE_NAME_BYTES = 32 };
/* Local. "rank-00003.safetensors" */
void rank_file_name(int rank, char *out);

/* Local. Returns the bytes of a part. */
int64_t rank_file_part_bytes(const StateTensors *t, const ManifestPart *p);
/* Local. Returns the number of hashes of a part. */
int64_t rank_file_part_chunks(const StateTensors *t, const ManifestPart *p);

/* Local. Computes the offset of each part, and the lengths of header and file. */
Err rank_file_layout(const StateTensors *t, RankFile *f, Arena *temp);
/* Local. Returns the header after rank_file_layout, with the hashes: data_at bytes. */
Err rank_file_header(const StateTensors *t, const RankFile *f, Arena *a, const char **head,
                     size_t *bytes);
/* Local. Reads the header only. ERR_CHECK if it is not a rank's file, or has other tensors. */
Err rank_file_read(const char *path, const StateTensors *t, Arena *a, RankFile *out);

#endif
