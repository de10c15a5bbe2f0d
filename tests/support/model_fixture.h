/* model_fixture.h -- a config.json on disk and the ModelConfig that is read from it. */
#ifndef TESTS_SUPPORT_MODEL_FIXTURE_H
#define TESTS_SUPPORT_MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "model/config.h"

#define GPT2_JSON "\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 4"
#define LLAMA_JSON                                                                                 \
    "\"model_type\": \"llama\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "                    \
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"intermediate_size\": 8, "           \
    "\"max_position_embeddings\": 8, \"vocab_size\": 8"

typedef struct {
    Arena arena;
    char folder[64], path[80];
} Fixture;

static inline int open_fixture(void **state)
{
    static Fixture f;
    memset(&f, 0, sizeof f);
    strcpy(f.folder, "/tmp/sheaf-model-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    snprintf(f.path, sizeof f.path, "%s/config.json", f.folder);
    assert_int_equal(arena_open(&f.arena, "test", ARENA_PLENTY), OK);
    *state = &f;
    return 0;
}

static inline int close_fixture(void **state)
{
    Fixture *f = *state;
    unlink(f->path);
    rmdir(f->folder);
    arena_close(&f->arena);
    return 0;
}

static inline void write_bytes(const Fixture *f, const char *bytes, size_t n)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline Err load_json(Fixture *f, const char *json, ModelConfig *out)
{
    write_bytes(f, json, strlen(json));
    arena_rewind(&f->arena, 0);
    return model_config_load(f->path, NULL, 0, &f->arena, out);
}

/* One override of a preset. */
static inline Err load_with(Fixture *f, const char *preset, const char *key, const char *value,
                            ModelConfig *out)
{
    const ModelField field = {key, value, "run.yaml:7", 1};
    arena_rewind(&f->arena, 0);
    return model_config_load(preset, &field, 1, &f->arena, out);
}

static inline void assert_says(const char *part)
{
    if (!strstr(err_text(), part)) fail_msg("\"%s\" is not in: %s", part, err_text());
}

#endif
