/* shadow_memory.c -- two parallel address ranges, allocated in step. Freeing a block releases its
 * pages; addresses are reused once no block is left. */
#define _GNU_SOURCE
#include "support/shadow_memory.h"

#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, MAX_BLOCKS = 4096 };
#define SPACE_BYTES ((size_t)1 << 34)

static struct {
    char *handed, *real;
    size_t used;
    struct {
        size_t at, bytes;
        const void *owner;
    } block[MAX_BLOCKS];
    int n;
    int64_t bytes;
} space;

static char *reserve(int protection)
{
    void *at =
        mmap(NULL, SPACE_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

Err shadow_alloc(size_t bytes, const void *owner, void **out)
{
    if (!space.handed) {
        space.handed = reserve(PROT_NONE);
        space.real = reserve(PROT_READ | PROT_WRITE);
    }
    const size_t whole = (bytes + PAGE) / PAGE * PAGE; /* at least one byte of padding */
    if (!space.handed || !space.real || space.n == MAX_BLOCKS || space.used + whole > SPACE_BYTES)
        return err_fail(ERR_NOMEM, "shadow: %zu bytes, with %zu in use", bytes, space.used);
    space.block[space.n].at = space.used;
    space.block[space.n].owner = owner;
    space.block[space.n++].bytes = whole;
    memset(space.real + space.used, 0xFF, bytes);
    *out = space.handed + space.used;
    space.used += whole;
    space.bytes += (int64_t)whole;
    return OK;
}

void shadow_free(void *at)
{
    for (int i = 0; i < space.n; i++) {
        if (space.handed + space.block[i].at != (char *)at) continue;
        madvise(space.real + space.block[i].at, space.block[i].bytes, MADV_DONTNEED);
        space.bytes -= (int64_t)space.block[i].bytes;
        space.block[i] = space.block[--space.n];
        if (space.n == 0) space.used = 0;
        return;
    }
    MUST(false, "shadow: %p is freed and was never allocated", at);
}

void *shadow_real(void *at)
{
    char *p = at;
    if (!space.handed || p < space.handed || p >= space.handed + SPACE_BYTES) return at;
    return space.real + (p - space.handed);
}

bool shadow_is_of(const void *owner, const void *at, size_t bytes)
{
    const char *p = at;
    for (int i = 0; i < space.n; i++) {
        const char *lo = space.handed + space.block[i].at;
        if (p >= lo && p + bytes <= lo + space.block[i].bytes) return space.block[i].owner == owner;
    }
    return false;
}

int64_t shadow_bytes(void) { return space.bytes; }
