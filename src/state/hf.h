/* hf.h -- Hugging Face folders: read as the weights of one of our models, and written.
 *
 *     config.json                        model_config_inference reads it
 *     model.safetensors                  or shards:
 *     model-00001-of-00003.safetensors   with model.safetensors.index.json, which tells who has what
 *     tokenizer.json ...                 carried along
 *
 * What is read is a manifest like that of a checkpoint, of weights alone: whoever loads or reshapes
 * checkpoints does the same with these. model/names.c tells where our parameters lie in their tensors,
 * and a part's PartStored what must be done to get them. */
#ifndef STATE_HF_H
#define STATE_HF_H

#include "model/build.h"
#include "state/manifest.h"

/* ---- files of safetensors, one or several ---- */

typedef struct {
    const StTensor *tensor;
    int file;
    bool used;
} HfEntry;

typedef struct {
    const char *dir;
    int n_files;
    const char **name; /* [n_files], plain */
    StFile *file;
    int n;
    HfEntry *entry; /* by name */
} HfFiles;

/* Local. Headers of all files. ERR_CONFIG when there are none that we read, ERR_CHECK when index and
 * files do not agree; names the file and the tensor. */
Err hf_files_open(const char *dir, Arena *a, HfFiles *out);
/* Local. NULL: no such tensor. */
HfEntry *hf_find(const HfFiles *f, const char *name);
/* Local. Files and tensors of an index, for hf_files_open and for tests. */
typedef struct {
    const char *tensor, *file;
} HfIndexEntry;
Err hf_index_parse(const char *path, const char *text, size_t bytes, Arena *a, HfIndexEntry **out,
                   int *n);

/* ---- weights of a model in them ---- */

/* Local. Is it such a folder: with a config.json, and no manifest.json? */
bool hf_is_folder(const char *dir);
/* Local. The weights of the model, which are read in `wide` (F32 or F64); optim is "none", the step
 * 0. Every tensor is found, is of a type and shape that fits, and none is left over but masks and
 * rotary tables, which follow from the config: ERR_CONFIG names what is not so. */
Err hf_open(const char *dir, const ModelConfig *c, DType wide, Arena *a, Manifest *out);
/* Local. Slow: where the head is the embedding's weight, and written out nevertheless, compares the
 * two. ERR_CONFIG when they differ. */
Err hf_check_tied(const char *dir, const ModelConfig *c, Arena *temp);

/* In a run folder: the config.json and the tokenizer of the folder that its weights came from. */
#define HF_EXTRA_DIR "hf"

#endif
