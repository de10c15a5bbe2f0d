/* fuzz_npy.c -- a file of numpy: an error, or an array whose elements are all in the file. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "state/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    StTensor t;
    int64_t count = 1;
    if (npy_parse("x.npy", (Bytes){data, size}, &t) != OK) return 0;
    for (int i = 0; i < t.ndim; i++) count *= t.n[i];
    if (t.at < 10 || count * st_type_bytes(t.type) != t.bytes) abort();
    if (t.at + t.bytes != (int64_t)size) abort();
    return 0;
}
