/* hf_write.h -- writes weights as a Hugging Face folder, with many threads and little memory.
 *
 *     1 DST.tmp: config.json, files with their headers, the index
 *     2 source chunks, taken by threads: read, verified, transposed, rounded, written to the files
 *     3 fsync of all files, copies of the tokenizer's files, rename to DST
 *
 * Each source chunk is read once. A thread needs the memory of a few chunks. */
#ifndef STATE_HF_WRITE_H
#define STATE_HF_WRITE_H

#include "base/team.h"
#include "state/source.h"

enum { HF_AS_STORED = N_ST_TYPES, HF_THREAD_BYTES = 5 * CHUNK_BYTES };
#define HF_SHARD_BYTES 5000000000
#define HF_ORIGINAL_CONFIG "config.original.json"

typedef struct {
    const Source *from;
    const char *dir;       /* DST: must not exist */
    const char *extra_dir; /* folder of tokenizer files to copy; NULL: none */
    const char *tokenizer; /* instead a tokenizer.json of any name; NULL: none */
    int type;              /* F32, F16, BF16; HF_AS_STORED: the source's type of each tensor */
    int64_t shard_bytes;
    Team *team;                                          /* NULL: one thread */
    void (*progress)(void *context, int64_t done_bytes); /* bytes of the source; may be NULL */
    void *context;
    Arena *temp; /* rewound; HF_THREAD_BYTES per thread, and lists */
} HfWriteSettings;

typedef struct {
    int files;
    int64_t bytes;       /* of all tensors in DST */
    int64_t overflow;    /* elements too large for the type, now infinite */
    int tokenizer_files; /* copied */
} HfWriteResult;

/* Local. After an error neither DST nor DST.tmp exists. */
Err hf_write(const HfWriteSettings *w, HfWriteResult *out);

/* ---- shared with hf_layout.c and hf_extra.c ---- */

/* Local. Plans the safetensors files: one, or shards of at most shard_bytes each. A larger tensor
 * is a shard of its own. */
typedef struct {
    int n;
    StFile *file;       /* path: name without a folder */
    int64_t data_bytes; /* total */
} HfShards;
Err hf_layout(const HfWriteSettings *w, Arena *a, HfShards *out);
/* Local. Creates the files in a folder, with headers and at full length, and the index if there
 * are several. */
Err hf_make_files(const HfShards *s, const char *dir, Arena *temp);

/* Local. Returns the text of config.json. If the source is a Hugging Face folder, or a run that
 * came from one: the folder's own with every key; keys that the run has changed, and the type if
 * one is requested, are new. Else generated from the model, with token ids if a tokenizer provides
 * them. */
Err hf_config_text(const HfWriteSettings *w, Arena *a, const char **out);
/* Local. Makes the folder `dir`, hf/ of a run, with the config.json of a source that has an
 * extra_dir and, if requested, its tokenizer files. A config.json with dropout is kept as
 * HF_ORIGINAL_CONFIG, next to one without it, which the run trains. */
Err hf_keep_files(const Source *from, const char *dir, bool tokenizer, Arena *a);
/* Local. Copies the files of a tokenizer, and generation_config.json; *n: their number. */
Err hf_copy_tokenizer(const char *from, const char *to, int *n);
/* Local. Copies a file to `name` in the folder `to` and syncs it. */
Err hf_copy_file(const char *path, const char *to, const char *name);
/* Local. Writes a text to a file in the folder and syncs it. */
Err hf_put_text(const char *dir, const char *name, const char *text);

#endif
