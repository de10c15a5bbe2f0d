/* manifest.h -- manifest.json, the description of a checkpoint.
 *
 *     checkpoints/step-00000020/manifest.json
 *                               rank-00000.safetensors ...       one per rank that owns something
 *     checkpoints/latest        step-00000020 and the manifest's hash
 *
 * The manifest contains no layout: only tensors, and for each the boxes that tile it, with the
 * file, the offset and the chunk hashes of each box. docs/CHECKPOINT.md describes the format for
 * other readers. */
#ifndef STATE_MANIFEST_H
#define STATE_MANIFEST_H

#include "state/safetensors.h"
#include "state/tensors.h"

enum {
    MANIFEST_VERSION = 1,
    CHUNK_BYTES = 4 << 20,
    MAX_MANIFEST_BYTES = 1 << 28 /* bytes of manifest.json */
};

/* The state of a job besides its tensors. */
typedef struct {
    int64_t step;    /* completed */
    int64_t cursor;  /* samples consumed since the start of the run */
    int64_t tokens;  /* live tokens since the start of the run */
    int64_t skipped; /* updates skipped, see optim.skip: Adam's time is step - skipped */
    uint64_t seed;   /* of all random numbers; they are counter-based, so no other state exists */
    uint64_t data;   /* fingerprint of the dataset */
    int64_t seq_len, batch; /* tokens per sample; samples per step */
    bool pack;
    const char *optim;   /* "adamw"; "none": no moments, only weights */
    const char *dtype;   /* type of computation: "bf16" */
    const char *device;  /* kernels used: "cpu avx512"; bit-equal resumption needs the same */
    const char *kernels; /* autotuned kernels, or "" */
    const char *config;  /* resolved run configuration, as YAML */
    const char *model;   /* model configuration, as JSON */
} StateScalars;

/* How a part is stored in a file that another program wrote.
 *
 *     q of GPT-2, here [D, D], is the columns 0 .. D of a transposed tensor [D, 3 D]:
 *
 *         row r there    | r-th column of q | of k | of v |        pitch 3 D, transposed */
typedef struct {
    StType type; /* F64, F32, F16, BF16, or of 8 bits: converted to the tensor's own type */
    bool transposed;
    int64_t pitch;                   /* elements between the starts of two rows in the file */
    const struct StoredScale *scale; /* of elements of 8 bits; NULL: none */
} StoredFormat;

/* The scales of a tensor of 8 bits: a tensor beside it, with one for each block of its elements.
 * Element (row, column) there is code x scale[row / block[0]][column / block[1]]. */
typedef struct StoredScale {
    int file;
    StType type;               /* F32, F16 or BF16 */
    int64_t at;                /* offset of its first byte in the file */
    int64_t block[2], columns; /* columns: scales in a row */
    int64_t row, column;       /* of the part's first element, in the tensor of the file */
} StoredScale;

typedef struct {
    int tensor, file;
    Box box;
    int64_t at;                 /* offset of its first byte in the file */
    const uint64_t *hash;       /* [chunk_count(box, CHUNK_BYTES / element)]: XXH3 of each chunk */
    const StoredFormat *stored; /* NULL: dense, in the tensor's type; else there are no hashes */
} ManifestPart;

typedef struct {
    const char *name; /* in the folder of the checkpoint */
    int64_t bytes;
    uint64_t header_hash;
} ManifestFile;

typedef struct {
    const char *dir; /* folder of the checkpoint */
    StateScalars scalars;
    StateTensors tensors;
    int n_files;
    ManifestFile *file;
    int64_t n_parts;
    ManifestPart *part; /* by tensor, then by the box's origin, row-major */
    uint64_t hash;      /* of the manifest's text */
} Manifest;

/* True if the manifest contains weights only. */
bool manifest_is_weights(const Manifest *m);
/* Local. The number of chunks of a part, and chunk i as a box of its tensor. *before: elements of a
 * dense part before the chunk. */
int64_t part_chunks(const StateTensors *t, const ManifestPart *p);
Box part_chunk(const StateTensors *t, const ManifestPart *p, int64_t i, int64_t *before);

/* Local. Compares two parts by tensor, then by the box's origin, for qsort. */
int manifest_part_order(const void *a, const void *b);

/* Local. Returns the text of manifest.json. Its last member is the hash of all bytes before it.
 * m->hash is not used; manifest_text_hash computes it from the text. */
Err manifest_text(const Manifest *m, Arena *a, const char **text, size_t *bytes);
/* Local. Extracts the stored hash and computes the actual one; false: the text does not end as a
 * manifest does. */
bool manifest_text_hash(const char *text, size_t bytes, uint64_t *stored, uint64_t *actual);
/* Local. Reads and checks a manifest: its own hash, every number, plain file names, boxes that tile
 * each tensor exactly once, parts that are inside of their files and do not overlap. ERR_CHECK
 * names the file and the problem. ERR_CONFIG: undamaged, but of another version. A folder named
 * step-N must contain step N. */
Err manifest_read(const char *dir, Arena *a, Manifest *out);
Err manifest_parse(const char *dir, const char *text, size_t bytes, Arena *a, Manifest *out);
/* Local. The checks of manifest_parse beyond single numbers. ERR_CHECK unless parts are in
 * order, tile each tensor exactly once, and fill each file from its header to its end. `dir` is
 * for messages. */
Err manifest_check(const Manifest *m, Arena *temp);
/* Local. ERR_CHECK unless each file exists with its length, and its header has the right hash. */
Err manifest_check_files(const Manifest *m, Arena *temp);

#endif
