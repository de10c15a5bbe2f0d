/* packing.h -- where things lie that live for a while.
 *
 * Each piece lives from `first` to `last` (positions in a list, both counted) and needs some bytes.
 * Pieces that live at the same time must not overlap. The lower bound is the most that lives at
 * once; no packing is smaller.
 *
 *     bytes ^   +----C----+          A and C live at the same time, B after A:
 *           |   +-A-+ +-B-+          B takes A's place
 *           +-------------------> position
 */
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
    size_t peak_bytes, live_bytes; /* of the packing; the lower bound */
} Packed;

/* With more pieces than this, only the fast orders are tried. */
enum { MAX_PACK_SLOW = 8000 };

/* Local. Sets the offsets; the same pieces always get the same. Tries several orders until one
 * meets the lower bound, and keeps the lowest peak. Three are fast: O(n log n), and n times the
 * gaps between the pieces that live at once. Two are O(n^2): for MAX_PACK_SLOW pieces at most. */
Err pack(Piece *piece, int n, Arena *temp, Packed *out);

#endif
