/* fuzz_manifest.c -- a manifest: an error, or one that is unchanged after writing and reading. Its
 * own hash is corrected first, since otherwise no input would pass it. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "state/hash.h"
#include "state/manifest.h"

static const char tail[] = "\"hash\": \"0123456789abcdef\"\n}\n";
enum { TAIL = sizeof tail - 1, DIGITS_AT = 9 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = fuzz_arena();
    Manifest m, again;
    const char *text;
    size_t bytes;
    char *copy = malloc(size + TAIL); /* exact size, for the sanitizer */
    const size_t body = size > TAIL ? size - TAIL : 0;
    if (body) memcpy(copy, data, body);
    memcpy(copy + body, tail, TAIL);
    hash_digits(hash_bytes(copy, body), copy + body + DIGITS_AT);
    if (manifest_parse("fuzz", copy, body + TAIL, a, &m) == OK) {
        if (manifest_text(&m, a, &text, &bytes) != OK) abort();
        if (manifest_parse("again", text, bytes, a, &again) != OK) abort();
        if (m.n_parts != again.n_parts || m.tensors.n != again.tensors.n) abort();
    }
    free(copy);
    return 0;
}
