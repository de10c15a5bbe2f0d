/* fuzz_hf_index.c -- the index of a folder's shards: an error, or tensors in plain
 * files, sorted. */
#define _GNU_SOURCE /* memfd_create, of fuzz.h */
#include "fuzz/fuzz.h"
#include "state/hf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    HfIndexEntry *map;
    int n;
    if (hf_index_parse("index.json", (const char *)data, size, fuzz_arena(), &map, &n) != OK)
        return 0;
    if (n < 1) abort();
    for (int i = 0; i < n; i++) {
        if (strchr(map[i].file, '/') || map[i].file[0] == '.' || !map[i].file[0]) abort();
        if (i > 0 && strcmp(map[i - 1].tensor, map[i].tensor) >= 0) abort();
    }
    return 0;
}
