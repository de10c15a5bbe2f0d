/* fuzz_run_file.c -- any bytes as a run file: config_load returns an error or a configuration. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"
#include "cli/config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Config c;
    (void)config_load(fuzz_file(data, size), NULL, 0, fuzz_arena(), &c);
    return 0;
}
