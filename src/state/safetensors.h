/* safetensors.h -- reads and writes the headers of safetensors files.
 *
 *     [8 bytes: N][N bytes: JSON, padded with spaces][data]
 *     {"__metadata__": {"k": "v"}, "NAME": {"dtype": "F32", "shape": [2, 3],
 *                                           "data_offsets": [0, 24]}}
 *
 * Data is little-endian, row-major, without holes or overlaps. A violation of the format is an
 * error with the file, the tensor and the rule: a header that is truncated, over 100 MB, not UTF-8,
 * not an object, or with a repeated key; metadata that is not strings; an unknown dtype or
 * malformed shape; a size that does not match its shape; data with a hole, an overlap, or bytes
 * that belong to no tensor. */
#ifndef STATE_SAFETENSORS_H
#define STATE_SAFETENSORS_H

#include <stdio.h>
#include "layout/layout.h"

/* Types of the format; a superset of those that we compute with. */
typedef enum {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_F64,
    ST_I64,
    ST_U64,
    ST_F8_E4M3,
    ST_F8_E5M2,
    N_ST_TYPES
} StType;

enum { MAX_ST_HEADER_BYTES = 100000000, MAX_ST_DIMS = 8 };

typedef struct {
    const char *name;
    StType type;
    int ndim;
    int64_t n[MAX_ST_DIMS];
    int64_t at, bytes; /* offset and length in the data */
} StTensor;

typedef struct {
    const char *key, *value;
} StPair;

typedef struct {
    const char *path;
    int n;
    StTensor *tensor; /* sorted by `at` */
    int n_pairs;
    const StPair *pair; /* of __metadata__ */
    int64_t data_at;    /* offset in the file: 8 + N */
    int64_t data_bytes;
    uint64_t header_hash; /* XXH3 of the 8 + N bytes before the data */
} StFile;

/* Local. Reads and checks the header. ERR_IO and ERR_CHECK name the file and the rule. */
Err st_read(const char *path, Arena *a, StFile *out);
/* Local. The same from memory, for tests: the first `bytes` bytes of a file of `file_bytes`. */
Err st_parse(const char *path, const void *head, size_t bytes, int64_t file_bytes, Arena *a,
             StFile *out);
/* Local. NULL: not found. */
const StTensor *st_find(const StFile *f, const char *name);
const char *st_meta(const StFile *f, const char *key);
const char *st_type_name(StType t);
int st_type_bytes(StType t);
StType st_type_of(DType dtype);

/* Local. Writes the header of a file to the arena; the offsets of the tensors are their `at`. Its
 * length is a multiple of 64, so data is aligned. Fails if st_parse would refuse it. */
Err st_header(const StFile *f, Arena *a, const char **head, size_t *bytes);

#endif
