/* hf_folders.h -- the folders of tests/golden/hf, and copies of them that a test may damage. */
#ifndef SUPPORT_HF_FOLDERS_H
#define SUPPORT_HF_FOLDERS_H

#include "model/config.h"
#include "state/hf.h"

#define HF_GOLDEN SHEAF_SOURCE_DIR "/tests/golden/hf/"

/* Ends with NULL. */
extern const char *const hf_folders[];

/* A prompt, and the logits of transformers for it. */
typedef struct {
    int64_t T, vocab;
    int32_t *token;
    double *logit; /* [T, vocab] */
} HfExpected;

/* All functions fail the test on an error. */
const char *hf_folder_path(const char *name, Arena *a);
void hf_folder_expected(const char *dir, Arena *a, HfExpected *out);
/* Reads every element of one of our weights from its file, one by one and without hf_open. */
void hf_folder_weight(const char *dir, const ModelConfig *c, const Param *p, Arena *a, double *out);

/* Copies a folder; remove the copy with state_folder_remove. */
void hf_folder_copy(const char *dir, const char *to);

#endif
