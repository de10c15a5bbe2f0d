/* packing.h -- offsets of buffers with lifetimes in one block of memory.
 *
 * Each piece lives from `first` to `last` (positions in a list, inclusive) and needs some bytes.
 * Pieces that live at the same time must not overlap. The lower bound is the maximum of the bytes
 * that live at once; no packing is smaller.
 *
 *     bytes ^   +----C----+          A and C live at the same time, B after A:
 *           |   +-A-+ +-B-+          B takes A's place
 *           +-------------------> position */
#ifndef BASE_PACKING_H
#define BASE_PACKING_H

#include <stdint.h>
#include "base/arena.h"

typedef struct {
    int32_t first, last;
    size_t bytes;
    size_t offset; /* out: a multiple of ARENA_ALIGN */
} Piece;

typedef struct {
    size_t peak_bytes, live_bytes; /* size of the packing; the lower bound */
} PackResult;

/* Number of pieces above which only the fast orders are tried. */
enum { MAX_SLOW_PIECES = 8000 };

/* Local. Sets the offsets; they depend on the pieces only. Tries several orders until one meets the
 * lower bound, and keeps the one with the lowest peak. Three orders are fast: O(n log n + n * gaps
 * between live pieces). Two are O(n^2) and used for at most MAX_SLOW_PIECES pieces. */
Err pack(Piece *piece, int n, Arena *temp, PackResult *out);

/* Packings that were found before, for one thread: packing_memo.c. */
typedef struct PackMemo PackMemo;
/* Local. Takes `bytes` of the arena, which may be rewound to a later mark. */
Err pack_memo_open(Arena *arena, size_t bytes, PackMemo **out);
/* Local. The result of pack, which is kept while the memo has room. memo NULL: pack. */
Err pack_with(PackMemo *memo, Piece *piece, int n, Arena *temp, PackResult *out);

#endif
