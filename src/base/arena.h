/* arena.h -- memory that is freed as a whole: push in order, rewind to a mark, never free one
 * piece. Functions that return memory take the arena from the caller.
 *
 *     Arena temp;
 *     TRY(arena_open(&temp, "passes", ARENA_PLENTY));
 *     Node *node;
 *     TRY(ARENA_NEW(&temp, n_nodes, &node));      zeroed
 *     arena_close(&temp);
 *
 * An arena reserves addresses, not memory: pages are taken when they are first written. With base
 * == NULL it only counts bytes, so one function both measures and allocates. An arena is used by
 * one thread at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

enum { ARENA_ALIGN = 64 };
#define ARENA_PLENTY ((size_t)1 << 34)

typedef struct {
    const char *name;
    char *base; /* NULL: it only counts */
    size_t cap_bytes, used_bytes, peak_bytes;
    bool is_device; /* memory that the host cannot write: neither cleared nor poisoned */
} Arena;

/* Local. Reserves cap_bytes of addresses. */
Err arena_open(Arena *a, const char *name, size_t cap_bytes);
void arena_close(Arena *a);
/* Local. Requests pages of 2 MiB: fewer page faults, and fewer TLB misses for rows that are far
 * apart. Call it before the first write. Has no effect if the system has no such pages. */
void arena_prefer_huge(Arena *a);
/* Local. An arena that only counts. Only tests call it. */
Arena arena_counter(const char *name, size_t cap_bytes);

/* Local. `bytes` more, aligned to ARENA_ALIGN, not cleared. *out is set only on success. */
Err arena_push(Arena *a, size_t bytes, void **out);
/* Local. `count` zeroed elements of type T; `out` is a T **. */
#define ARENA_NEW(a, count, out) arena_new((a), (size_t)(count), sizeof **(out), (void *)(out))
Err arena_new(Arena *a, size_t count, size_t element_bytes, void *out);
/* Local. A copy of the text; NULL from an arena that only counts. */
Err arena_string(Arena *a, const char *text, const char **out);

/* Local. The fill level now; arena_rewind frees all that was pushed after it. */
size_t arena_mark(const Arena *a);
void arena_rewind(Arena *a, size_t mark);

static inline size_t align_up(size_t bytes)
{
    return (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
}

#endif
