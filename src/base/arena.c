/* arena.c -- bump allocation over one reserved range of addresses. */
#define _DEFAULT_SOURCE
#include "base/arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

Err arena_open(Arena *a, const char *name, size_t cap_bytes)
{
    void *base = mmap(NULL, cap_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return err_fail(ERR_NOMEM,
                        "arena %s: cannot reserve %zu bytes of addresses; is there a "
                        "limit on virtual memory (ulimit -v)?",
                        name, cap_bytes);
    *a = (Arena){.name = name, .base = base, .cap_bytes = cap_bytes};
    return OK;
}

void arena_prefer_huge(Arena *a)
{
#ifdef MADV_HUGEPAGE
    if (a->base) (void)madvise(a->base, a->cap_bytes, MADV_HUGEPAGE);
#endif
}

void arena_close(Arena *a)
{
    if (a->base) munmap(a->base, a->cap_bytes);
    *a = (Arena){.name = a->name};
}

Arena arena_counter(const char *name, size_t cap_bytes)
{
    return (Arena){.name = name, .cap_bytes = cap_bytes};
}

Err arena_push(Arena *a, size_t bytes, void **out)
{
    const size_t start = align_up(a->used_bytes);
    if (start > a->cap_bytes || bytes > a->cap_bytes - start)
        return err_fail(ERR_NOMEM, "arena %s: %zu more bytes do not fit, %zu of %zu are used",
                        a->name, bytes, a->used_bytes, a->cap_bytes);
    a->used_bytes = start + bytes;
    if (a->peak_bytes < a->used_bytes) a->peak_bytes = a->used_bytes;
    *out = a->base ? a->base + start : NULL;
    return OK;
}

Err arena_new(Arena *a, size_t count, size_t element_bytes, void *out)
{
    void *p;
    if (count > SIZE_MAX / element_bytes)
        return err_fail(ERR_NOMEM, "arena %s: %zu elements of %zu bytes are too many", a->name,
                        count, element_bytes);
    TRY(arena_push(a, count * element_bytes, &p));
    if (p) memset(p, 0, count * element_bytes);
    memcpy(out, &p, sizeof p); /* `out` is a T **, of any T */
    return OK;
}

Err arena_string(Arena *a, const char *text, const char **out)
{
    char *copy;
    const size_t bytes = strlen(text) + 1;
    TRY(ARENA_NEW(a, bytes, &copy));
    if (copy) memcpy(copy, text, bytes);
    *out = copy;
    return OK;
}

size_t arena_mark(const Arena *a) { return a->used_bytes; }

void arena_rewind(Arena *a, size_t mark)
{
    MUST(mark <= a->used_bytes, "arena %s: mark %zu is past %zu", a->name, mark, a->used_bytes);
#ifndef NDEBUG
    if (a->base) memset(a->base + mark, 0xA5, a->used_bytes - mark); /* poison: a late read shows */
#endif
    a->used_bytes = mark;
}
