/* models.c -- the configurations, as rows. */
#include "support/models.h"

#include <string.h>

#define COMMON .n_layers = 2, .vocab = 23, .max_positions = 40, .norm_eps = 1e-5, .init_std = 0.1

#define LLAMA(family_, heads, kv, head)                                                            \
    COMMON, .family = family_, .width = 12, .n_heads = heads, .n_kv_heads = kv, .head_size = head, \
            .ff_width = 18

#define ROPE(scaling_)                                                                             \
    {                                                                                              \
        .theta = 80.0, .scaling = scaling_, .factor = 3.0, .low = 1.0, .high = 4.0, .original = 16 \
    }

#define PLAIN                                                                                      \
    {                                                                                              \
        .theta = 80.0, .factor = 1.0                                                               \
    }

const TestModel test_models[] = {
    {"gpt2",
     {COMMON, .name = "gpt2", .family = FAMILY_GPT2, .width = 15, .n_heads = 3, .n_kv_heads = 3,
      .head_size = 5, .ff_width = 26, .tied = true, .qkv_bias = true, .o_bias = true,
      .mlp_bias = true}},
    {"gpt2-untied",
     {COMMON, .name = "gpt2-untied", .family = FAMILY_GPT2, .width = 14, .n_heads = 2,
      .n_kv_heads = 2, .head_size = 7, .ff_width = 20, .qkv_bias = true, .o_bias = true,
      .mlp_bias = true}},
    {"llama", {LLAMA(FAMILY_LLAMA, 4, 2, 6), .name = "llama", .rope = ROPE(ROPE_LLAMA3)}},
    {"llama-tied",
     {LLAMA(FAMILY_LLAMA, 6, 2, 4), .name = "llama-tied", .rope = ROPE(ROPE_LINEAR), .tied = true}},
    {"mistral", {LLAMA(FAMILY_MISTRAL, 3, 1, 4), .name = "mistral", .rope = PLAIN, .window = 4}},
    {"qwen2",
     {LLAMA(FAMILY_QWEN2, 2, 1, 6), .name = "qwen2", .rope = PLAIN, .qkv_bias = true,
      .tied = true}},
    {"qwen3", {LLAMA(FAMILY_QWEN3, 4, 2, 8), .name = "qwen3", .rope = PLAIN, .qk_norm = true}},
    {"mixtral",
     {LLAMA(FAMILY_MIXTRAL, 4, 2, 6), .name = "mixtral", .rope = PLAIN,
      .experts = {.n = 5,
                  .chosen = 2,
                  .width = 9,
                  .renormalize = true,
                  .scaling = 1,
                  .aux_loss = 0.1,
                  .z_loss = 0.05}}},
    {"qwen2_moe", /* the first of two layers is dense */
     {LLAMA(FAMILY_QWEN2_MOE, 4, 2, 4), .name = "qwen2_moe", .rope = PLAIN, .qkv_bias = true,
      .experts = {.n = 3,
                  .chosen = 1,
                  .width = 7,
                  .shared_width = 10,
                  .scaling = 1,
                  .sparse_step = 2,
                  .aux_loss = 0.2}}},
    {0},
};

const ModelConfig *test_model(const char *name)
{
    const TestModel *m = test_models;
    while (m->name && strcmp(m->name, name) != 0) m++;
    return m->name ? &m->config : NULL;
}
