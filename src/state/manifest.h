/* manifest.h -- what a checkpoint is made of: manifest.json.
 *
 *     checkpoints/step-00000020/manifest.json
 *                               rank-00000.safetensors ...       one for each rank that owns something
 *     checkpoints/latest        step-00000020 and the manifest's hash
 *
 * The manifest knows no layout: tensors, and for each the boxes that make it, where each lies in
 * which file, and the hashes of its chunks. docs/CHECKPOINT.md says it for those who write a
 * reader. */
#ifndef STATE_MANIFEST_H
#define STATE_MANIFEST_H

#include "state/safetensors.h"
#include "state/tensors.h"

enum {
    MANIFEST_VERSION = 1,
    CHUNK_BYTES = 4 << 20,
    MAX_MANIFEST_BYTES = 1 << 28 /* bytes of manifest.json */
};

/* What a job knows besides its tensors. */
typedef struct {
    int64_t step;    /* done */
    int64_t cursor;  /* samples consumed since the start of the run */
    int64_t tokens;  /* live ones, likewise */
    int64_t skipped; /* updates that were left out, see optim.skip: Adam's time is step - skipped */
    uint64_t seed;   /* of all random numbers; they are counted, so nothing else is kept */
    uint64_t data;   /* fingerprint of the dataset */
    int64_t seq_len, batch; /* of a sample; of a step, in samples */
    bool pack;
    const char *optim;   /* "adamw"; "none": there are no moments, for nobody trained it yet */
    const char *dtype;   /* what it computes in: "bf16" */
    const char *device;  /* kernels that made it: "cpu avx512"; exact continuation needs the same */
    const char *kernels; /* the file of kernel choices, or "" */
    const char *config;  /* the resolved configuration, as YAML */
    const char *model;   /* the model's configuration, as JSON text */
} StateScalars;

/* How a part lies in a file that somebody else wrote.
 *
 *     q of GPT-2, here [D, D]: columns 0 .. D of a tensor [D, 3 D], and turned
 *
 *         row r there    | r-th column of q | of k | of v |        pitch 3 D, transposed */
typedef struct {
    StType type; /* F64, F32, F16 or BF16: read as the tensor's own */
    bool transposed;
    int64_t pitch; /* elements from a row there to the next */
} PartStored;

typedef struct {
    int tensor, file;
    Box box;
    int64_t at;               /* in the file, of its first byte */
    const uint64_t *hash;     /* [chunk_count(box, CHUNK_BYTES / element)]: XXH3 of each chunk */
    const PartStored *stored; /* NULL: dense, in the tensor's own type; else it has no hashes */
} ManifestPart;

typedef struct {
    const char *name; /* in the checkpoint's folder */
    int64_t bytes;
    uint64_t header_hash;
} ManifestFile;

typedef struct {
    const char *dir; /* the checkpoint's folder, for messages and for reading */
    StateScalars scalars;
    StateTensors tensors;
    int n_files;
    ManifestFile *file;
    int64_t n_parts;
    ManifestPart *part; /* by tensor, then by the box's origin, row-major */
    uint64_t hash;      /* of itself */
} Manifest;

/* Is it one of weights alone? */
bool manifest_is_weights(const Manifest *m);
/* Local. A part's chunks: how many, and the i-th as a box of its tensor; *before: how many elements
 * of the part lie before it, where it is dense. */
int64_t part_chunks(const StateTensors *t, const ManifestPart *p);
Box part_chunk(const StateTensors *t, const ManifestPart *p, int64_t i, int64_t *before);

/* Local. The order of parts, as qsort asks for it. */
int manifest_part_order(const void *a, const void *b);

/* Local. The manifest as the bytes of manifest.json; the last member is the hash of all before.
 * `hash` of m is not looked at; manifest_text_hash tells it of the text. */
Err manifest_text(const Manifest *m, Arena *a, const char **text, size_t *bytes);
/* Local. false: the text does not end as a manifest does. */
bool manifest_text_hash(const char *text, size_t bytes, uint64_t *stored, uint64_t *actual);
/* Local. Reads and checks: the hash of itself, every number, that names are plain, that the boxes
 * of each tensor tile it exactly once, that parts lie in their files and do not overlap. ERR_CHECK
 * names the file and what is wrong; ERR_CONFIG: it is whole, and of another version. A folder named
 * step-N must hold step N. */
Err manifest_read(const char *dir, Arena *a, Manifest *out);
Err manifest_parse(const char *dir, const char *text, size_t bytes, Arena *a, Manifest *out);
/* Local. What manifest_parse checks of numbers that fit: ERR_CHECK unless parts are in their order,
 * tile each tensor exactly once, and fill each file from its header to its end. `dir` is for the
 * messages. */
Err manifest_check(const Manifest *m, Arena *temp);
/* Local. ERR_CHECK unless each file is there, has its length, and its header hashes as it should.
 * */
Err manifest_check_files(const Manifest *m, Arena *temp);

#endif
