/* hf.h -- reads Hugging Face folders as the weights of a model; hf_write.h writes them.
 *
 *     config.json                        read by model_config_inference
 *     model.safetensors                  one file, or shards:
 *     model-00001-of-00003.safetensors   with model.safetensors.index.json: the file of each tensor
 *     tokenizer.json ...                 copied
 *
 * The result is a manifest of weights only, as of a checkpoint, so loading and reshaping work the
 * same way. model/names.c maps our parameters to the file's tensors. StoredFormat describes how
 * each is stored. */
#ifndef STATE_HF_H
#define STATE_HF_H

#include "model/build.h"
#include "state/manifest.h"

/* ---- safetensors files, one or several ---- */

typedef struct {
    const StTensor *tensor;
    int file;
    bool used;
} HfEntry;

typedef struct {
    const char *dir;
    int n_files;
    const char **name; /* [n_files], without a folder */
    StFile *file;
    int n;
    HfEntry *entry; /* sorted by name */
} HfFiles;

/* Local. Reads the headers of all files. ERR_CONFIG if there are no supported files, ERR_CHECK if
 * the index and the files disagree; names the file and the tensor. */
Err hf_files_open(const char *dir, Arena *a, HfFiles *out);
/* Local. NULL: no such tensor. */
HfEntry *hf_find(const HfFiles *f, const char *name);
/* Local. Parses an index into (tensor, file) pairs; for hf_files_open and for tests. */
typedef struct {
    const char *tensor, *file;
} HfIndexEntry;
Err hf_index_parse(const char *path, const char *text, size_t bytes, Arena *a, HfIndexEntry **out,
                   int *n);

/* ---- the weights of a model ---- */

/* Local. True if the folder has a config.json and no manifest.json. */
bool hf_is_folder(const char *dir);
/* Local. Opens the weights of the model, to be read as `wide` (F32 or F64); optim is "none",
 * the step 0. Every tensor must exist with a supported type and the right shape. No tensor may
 * be left over, except masks and rotary tables, which follow from the config. ERR_CONFIG names
 * the tensor. */
Err hf_open(const char *dir, const ModelConfig *c, DType wide, Arena *a, Manifest *out);
/* Local. Slow. If the config ties the head to the embedding but the files contain both, compares
 * them. ERR_CONFIG if they differ. */
Err hf_check_tied(const char *dir, const ModelConfig *c, Arena *temp);

/* Folder in a run folder: the config.json and the tokenizer of the source of the weights. */
#define HF_EXTRA_DIR "hf"

#endif
