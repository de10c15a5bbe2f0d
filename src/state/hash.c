/* hash.c -- the only file that uses xxHash. The header contains all of its code, so no library has
 * to be linked or found at run time. */
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "state/hash.h"

uint64_t hash_bytes(const void *bytes, size_t n) { return XXH3_64bits(bytes, n); }

void hash_digits(uint64_t hash, char *out)
{
    for (int i = HASH_DIGITS - 1; i >= 0; i--, hash >>= 4) out[i] = "0123456789abcdef"[hash & 15];
}

bool hash_of_digits(const char *digits, uint64_t *out)
{
    uint64_t hash = 0;
    for (int i = 0; i < HASH_DIGITS; i++) {
        const char c = digits[i];
        const bool number = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!number && !letter) return false;
        hash = hash << 4 | (uint64_t)(number ? c - '0' : c - 'a' + 10);
    }
    *out = hash;
    return true;
}
