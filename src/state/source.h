/* source.h -- opens the weights that a path refers to.
 *
 *     runs/demo                       a run folder: its newest complete checkpoint
 *     runs/demo/checkpoints           the same
 *     runs/demo/checkpoints/step-N    that checkpoint
 *     models/Llama-3.2-1B             a Hugging Face folder
 *
 * Each gives a model and a manifest, which state_load, state_reshape and hf_write accept. */
#ifndef STATE_SOURCE_H
#define STATE_SOURCE_H

#include "state/hf.h"

typedef enum { SOURCE_CHECKPOINT, SOURCE_HF } SourceKind;

enum { SOURCE_NOTE_BYTES = 1024 };

typedef struct {
    SourceKind kind;
    const char *dir; /* of the files: a step's folder, or the Hugging Face folder */
    ModelConfig model;
    Manifest manifest;
    const char *extra_dir;        /* folder that may contain tokenizer files; NULL: none */
    char note[SOURCE_NOTE_BYTES]; /* a warning for the user, or "" */
} Source;

/* Local. Weights of a Hugging Face folder are read as `wide`, F32 or F64; those of a checkpoint
 * have their own type. `ignore`: keys of a config.json that are skipped; NULL: none. ERR_CONFIG if
 * the path is none of these, ERR_CHECK if it is damaged. */
Err source_open(const char *path, DType wide, const IgnoredKeys *ignore, Arena *a, Source *out);

#endif
