/* shadow_memory.h -- memory with two addresses: a public one that faults, a private one to work at.
 *
 *     public       |xxxxxx|xxxx|xxxxxxxxx|......      never readable, never writable
 *     private      |aaaaaa|bbbb|ccccccccc|......      the contents
 *
 * Used under the lock of shadow.c. */
#ifndef SUPPORT_SHADOW_MEMORY_H
#define SUPPORT_SHADOW_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* Local. Filled with 0xFF, which is NaN. */
Err shadow_alloc(size_t bytes, const void *owner, void **out);
void shadow_free(void *at);
/* Local. The private address; host addresses are returned unchanged. */
void *shadow_real(void *at);
/* Local. True if one block of the owner contains all of the bytes. */
bool shadow_is_of(const void *owner, const void *at, size_t bytes);
int64_t shadow_bytes(void);

#endif
