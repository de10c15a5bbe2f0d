/* hf_write.h -- weights written as a Hugging Face folder, by many threads, in the memory of a few
 * chunks each.
 *
 *     1 DST.tmp: config.json, files with their headers, the index
 *     2 source chunks, dealt out to threads: read, checked, turned, rounded, written where they belong
 *     3 fsync of all, tokenizer's files, rename to DST
 *
 * Each source chunk is read once. */
#ifndef STATE_HF_WRITE_H
#define STATE_HF_WRITE_H

#include "base/team.h"
#include "state/source.h"

enum { HF_AS_STORED = N_ST_TYPES, HF_THREAD_BYTES = 5 * CHUNK_BYTES };
#define HF_SHARD_BYTES 5000000000

typedef struct {
    const Source *from;
    const char *dir;       /* DST: must not be there */
    const char *extra_dir; /* folder of a tokenizer's files, which are carried over; NULL: none */
    const char *tokenizer; /* else a tokenizer.json of another name; NULL: none */
    int type;              /* F32, F16, BF16; HF_AS_STORED: each tensor of the type that it has */
    int64_t shard_bytes;
    Team *team;                                          /* NULL: one thread */
    void (*progress)(void *context, int64_t done_bytes); /* of the source; may be NULL */
    void *context;
    Arena *temp; /* rewound; HF_THREAD_BYTES for each thread, and lists */
} HfWriteSettings;

typedef struct {
    int files;
    int64_t bytes;       /* of all tensors, there */
    int64_t overflow;    /* elements too large for the type, which became infinite */
    int tokenizer_files; /* files of a tokenizer */
} HfWriteResult;

/* Local. After an error DST is not there, and DST.tmp is gone. */
Err hf_write(const HfWriteSettings *w, HfWriteResult *out);

/* ---- for hf_write.c ---- */

/* Local. The files of safetensors that the weights make: one, or shards of at most shard_bytes but
 * for a tensor that is larger. */
typedef struct {
    int n;
    StFile *file;       /* path: its plain name */
    int64_t data_bytes; /* of all */
} HfShards;
Err hf_layout(const HfWriteSettings *w, Arena *a, HfShards *out);
/* Local. Makes the files in a folder, with headers, at full length; and the index of several. */
Err hf_make_files(const HfShards *s, const char *dir, Arena *temp);

/* Local. The text of config.json: that of a Hugging Face source but for the type, else made from
 * the model, with ids of tokens where a tokenizer tells them. */
Err hf_config_text(const HfWriteSettings *w, Arena *a, const char **out);
/* Local. Copies what a tokenizer is made of, and how to generate; *n counts. */
Err hf_copy_tokenizer(const char *from, const char *to, int *n);
/* Local. Copies a file to that name in a folder, and syncs it. */
Err hf_copy_file(const char *path, const char *to, const char *name);
/* Local. Writes a text to a file of the folder, and syncs it. */
Err hf_put_text(const char *dir, const char *name, const char *text);

#endif
