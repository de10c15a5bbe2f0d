/* fuzz_model_config.c -- a config.json: an error or a model whose sizes fit together. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ModelConfig m;
    if (model_config_load(fuzz_file(data, size), NULL, 0, fuzz_arena(), &m) == OK &&
        model_config_check(&m) != OK)
        abort();
    return 0;
}
