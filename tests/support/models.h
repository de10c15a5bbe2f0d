/* models.h -- small configurations of every family, with all sizes different. */
#ifndef SUPPORT_MODELS_H
#define SUPPORT_MODELS_H

#include "model/config.h"

typedef struct {
    const char *name;
    ModelConfig config;
} TestModel;

/* gpt2, gpt2 untied, llama (grouped heads, llama3 rope), llama tied (linear rope), mistral
 * (window), qwen2 (biases), qwen3 (norms of q and k): two layers each; ends with a NULL name. */
extern const TestModel test_models[];
/* Local. Returns the configuration of that name. */
const ModelConfig *test_model(const char *name);

#endif
