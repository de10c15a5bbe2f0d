/* hash.h -- the hash of all that a checkpoint is made of: XXH3, 64 bits, seed 0. It finds what
 * disks and networks do to bytes; it is no defence against somebody who means harm.
 *
 * In files a hash is 16 digits of hexadecimal, lower case, the highest first. */
#ifndef STATE_HASH_H
#define STATE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HASH_DIGITS = 16 };

/* Local. */
uint64_t hash_bytes(const void *bytes, size_t n);
/* Local. Writes HASH_DIGITS characters, no NUL. */
void hash_digits(uint64_t hash, char *out);
/* Local. Reads as many; false when one of them is none of 0-9, a-f. */
bool hash_of_digits(const char *digits, uint64_t *out);

#endif
