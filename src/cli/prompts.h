/* prompts.h -- the prompts of `sheaf generate`: -p TEXT, or a file with one prompt per line, or
 * JSONL. */
#ifndef CLI_PROMPTS_H
#define CLI_PROMPTS_H

#include "cli/infer.h"
#include "infer/generate.h"

typedef struct {
    const char *text, *file; /* -p and --prompts; exactly one is set */
    bool ids;                /* prompts are token ids, separated by spaces */
} PromptArgs;

typedef struct {
    Prompt *prompt;
    Bytes *text; /* as given; for ids, the decoded text */
    int64_t n;
    int64_t longest; /* tokens of the longest prompt */
} Prompts;

/* Local. ERR_CONFIG for no prompt, an empty prompt or an id outside of the vocabulary; the message
 * names the line. */
Err prompts_read(const InferContext *u, const PromptArgs *words, Arena *a, Prompts *out);

#endif
