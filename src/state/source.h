/* source.h -- where weights come from: whatever a person may point at.
 *
 *     runs/demo                       a run folder: its newest whole checkpoint
 *     runs/demo/checkpoints           likewise
 *     runs/demo/checkpoints/step-N    that one
 *     models/Llama-3.2-1B             a Hugging Face folder
 *
 * All become a model and a manifest; state_load, state_reshape and hf_write take either. */
#ifndef STATE_SOURCE_H
#define STATE_SOURCE_H

#include "state/hf.h"

typedef enum { SOURCE_CHECKPOINT, SOURCE_HF } SourceKind;

enum { SOURCE_NOTE_BYTES = 1024 };

typedef struct {
    SourceKind kind;
    const char *dir; /* of the files: a step's folder, or the Hugging Face one */
    ModelConfig model;
    Manifest manifest;
    const char *extra_dir; /* folder that may hold a tokenizer's files; NULL: there is none */
    char note[SOURCE_NOTE_BYTES]; /* what a person should be told, or "" */
} Source;

/* Local. Weights of a Hugging Face folder are read in `wide`, F32 or F64; those of a checkpoint are
 * of its own type. ERR_CONFIG when the path is none of these, ERR_CHECK when it is damaged. */
Err source_open(const char *path, DType wide, Arena *a, Source *out);

#endif
