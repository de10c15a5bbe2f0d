/* shadow_memory.h -- memory with two addresses: one to hand out, which faults, one to work at.
 *
 *     handed out   |xxxxxx|xxxx|xxxxxxxxx|......      never readable, never writable
 *     real         |aaaaaa|bbbb|ccccccccc|......      the same pages' contents
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
/* Local. Where kernels find it; memory of the host is where it is. */
void *shadow_real(void *at);
/* Local. Does the block that it is in end after all of it, and belong to the owner? */
bool shadow_is_of(const void *owner, const void *at, size_t bytes);
int64_t shadow_bytes(void);

#endif
