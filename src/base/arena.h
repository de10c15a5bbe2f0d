/* arena.h -- memory that lives and dies together: push in order, rewind to a mark, never free one
 * piece. The caller names the arena; nobody hands back memory of their own.
 *
 *     Arena temp;
 *     TRY(arena_open(&temp, "passes", ARENA_PLENTY));
 *     Node *node;
 *     TRY(ARENA_NEW(&temp, n_nodes, &node));      zeroed
 *     arena_close(&temp);
 *
 * An arena reserves addresses, not memory: pages are taken when they are first written. With
 * base == NULL it only counts, so the code that allocates is the code that measures. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include "base/err.h"

enum { ARENA_ALIGN = 64 };
#define ARENA_PLENTY ((size_t)1 << 34)

typedef struct {
    const char *name;
    char *base; /* NULL: only counts */
    size_t cap_bytes, used_bytes, peak_bytes;
} Arena;

/* Local. Reserves cap_bytes of addresses. */
Err arena_open(Arena *a, const char *name, size_t cap_bytes);
void arena_close(Arena *a);
/* Local. Asks for pages of 2 MiB, where the system has them: fewer faults, and fewer misses of
 * translations where rows lie far apart. Before it is written to; nothing happens where they are not
 * to be had. */
void arena_prefer_huge(Arena *a);
/* Local. An arena that only counts. */
Arena arena_counter(const char *name, size_t cap_bytes);

/* Local. `bytes` more, aligned to ARENA_ALIGN, not cleared. *out is set only on success. */
Err arena_push(Arena *a, size_t bytes, void **out);
/* Local. `count` zeroed elements of the type that `out` points to a pointer of. */
#define ARENA_NEW(a, count, out) arena_new((a), (size_t)(count), sizeof **(out), (void *)(out))
Err arena_new(Arena *a, size_t count, size_t element_bytes, void *out);
/* Local. A copy of the text; NULL, like all that an arena which only counts gives. */
Err arena_string(Arena *a, const char *text, const char **out);

size_t arena_mark(const Arena *a);
void arena_rewind(Arena *a, size_t mark);

static inline size_t align_up(size_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
}

#endif
