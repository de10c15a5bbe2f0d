/* arena.c -- bump allocation over one reserved range of addresses.
 *
 * Passes open an arena for as long as they run. A closed arena of a few MiB leaves its range to the
 * next one of the same size, so its pages are mapped once, not in each pass. */
#define _DEFAULT_SOURCE
#include "base/arena.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum { N_SIZES = 8 * sizeof(size_t), KEPT_EACH = 2 };
static const size_t KEPT_BYTES = (size_t)8 << 20;

/* Ranges of closed arenas, by the logarithm of their size; NULL: none. */
static _Atomic(char *) kept[N_SIZES][KEPT_EACH];

/* The row of a size; -1: it is no power of 2. */
static int kept_row(size_t bytes)
{
    int row = 0;
    if (bytes == 0 || (bytes & (bytes - 1))) return -1;
    while (bytes >> row != 1) row++;
    return row;
}

static char *take_kept(size_t bytes)
{
    const int row = kept_row(bytes);
    char *base = NULL;
    for (int i = 0; row >= 0 && i < KEPT_EACH && !base; i++)
        base = atomic_exchange(&kept[row][i], NULL);
    return base;
}

/* False if the range is not kept: it has many pages, or there is no room. */
static bool keep_range(const Arena *a)
{
    const int row = kept_row(a->cap_bytes);
    if (a->peak_bytes > KEPT_BYTES) return false;
    for (int i = 0; row >= 0 && i < KEPT_EACH; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&kept[row][i], &none, a->base)) return true;
    }
    return false;
}

static void return_kept(void)
{
    for (int row = 0; row < N_SIZES; row++)
        for (int i = 0; i < KEPT_EACH; i++) {
            char *base = atomic_exchange(&kept[row][i], NULL);
            if (base) munmap(base, (size_t)1 << row);
        }
}

static char *reserve(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

Err arena_open(Arena *a, const char *name, size_t cap_bytes)
{
    char *base = take_kept(cap_bytes);
    if (!base) base = reserve(cap_bytes);
    if (!base) {
        return_kept(); /* they count against a limit on virtual memory */
        base = reserve(cap_bytes);
    }
    if (!base)
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
    if (a->base && !keep_range(a)) munmap(a->base, a->cap_bytes);
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
    MUST(!a->is_device, "arena %s: the host cannot clear the memory of a device", a->name);
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
    if (a->base && !a->is_device)
        memset(a->base + mark, 0xA5, a->used_bytes - mark); /* poison: a late read shows */
#endif
    a->used_bytes = mark;
}
