/* hash.h -- the hash of checkpoints: XXH3, 64 bits, seed 0.
 *
 * It detects corruption by disks and networks, but not deliberate manipulation. In files a hash is
 * 16 hexadecimal digits, lower case, most significant first. */
#ifndef STATE_HASH_H
#define STATE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HASH_DIGITS = 16 };

/* Local. Hashes n bytes. */
uint64_t hash_bytes(const void *bytes, size_t n);
/* Local. Writes HASH_DIGITS characters, no NUL. */
void hash_digits(uint64_t hash, char *out);
/* Local. Parses HASH_DIGITS characters; false if one is not in 0-9, a-f. */
bool hash_of_digits(const char *digits, uint64_t *out);

#endif
