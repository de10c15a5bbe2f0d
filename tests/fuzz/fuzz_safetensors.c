/* fuzz_safetensors.c -- a safetensors file: an error, or a header that can be rewritten and read
 * back unchanged. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "state/safetensors.h"

static void must(int condition)
{
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = fuzz_arena();
    StFile f, again;
    const char *head;
    size_t bytes;
    int64_t end = 0;
    if (st_read(fuzz_file(data, size), a, &f) != OK) return 0;
    for (int i = 0; i < f.n; i++) {
        must(f.tensor[i].at == end && f.tensor[i].bytes >= 0);
        end += f.tensor[i].bytes;
    }
    must(end == f.data_bytes && f.data_at + f.data_bytes == (int64_t)size);
    must(st_header(&f, a, &head, &bytes) == OK);
    must(st_parse("again", head, bytes, (int64_t)bytes + f.data_bytes, a, &again) == OK);
    must(again.n == f.n && again.n_pairs == f.n_pairs);
    return 0;
}
