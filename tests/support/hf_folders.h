/* hf_folders.h -- the folders of tests/golden/hf, and copies of them that a test may damage. */
#ifndef SUPPORT_HF_FOLDERS_H
#define SUPPORT_HF_FOLDERS_H

#include "model/config.h"
#include "state/hf.h"

#define HF_GOLDEN SHEAF_SOURCE_DIR "/tests/golden/hf/"

/* Ends with NULL. */
extern const char *const hf_folders[];

/* A prompt, and the logits that transformers has for it. */
typedef struct {
    int64_t T, vocab;
    int32_t *token;
    double *logit; /* [T, vocab] */
} HfExpected;

/* All fail the test when something is wrong. */
const char *hf_folder_path(const char *name, Arena *a);
void hf_folder_expected(const char *dir, Arena *a, HfExpected *out);
/* Every element of a weight of ours as its file has it, element by element: not by hf_open. */
void hf_folder_weight(const char *dir, const ModelConfig *c, const Param *p, Arena *a, double *out);

/* A copy, which must be removed: state_folder_remove. */
void hf_folder_copy(const char *dir, const char *to);

#endif
