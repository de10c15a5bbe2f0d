/* prompts.h -- what to go on from: -p TEXT, or a file with one prompt a line, or JSONL. */
#ifndef CLI_PROMPTS_H
#define CLI_PROMPTS_H

#include "cli/infer.h"
#include "infer/generate.h"

typedef struct {
    const char *text, *file; /* -p and --prompts; one of them */
    bool ids;                /* texts are token ids, spaces between them */
} PromptArgs;

typedef struct {
    Prompt *prompt;
    Bytes *text; /* as it was given; of ids, what they spell */
    int64_t n;
    int64_t longest; /* tokens */
} Prompts;

/* Local. ERR_CONFIG for none, for an empty one, for an id that the model has not; names the line. */
Err prompts_read(const InferContext *u, const PromptArgs *words, Arena *a, Prompts *out);

#endif
