/* mask.h -- mask coverage of blocks, tiles and groups of rows.
 *
 *            keys ->   0     64    128          a mask is two ranges of keys per query
 *     queries     0  [full][    ][    ]         full: every query attends to every key; no masking
 *                64  [part][full][    ]         part: masked pair by pair
 *               128  [    ][part][full]         empty: not computed
 *
 * In a partial tile, each group of SMALL_MR tokens multiplies only its hull: the smallest range of
 * the other block that contains all visible pairs of the group. A pair is visible if its query
 * attends to its key. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_MASK_H
#define DEVICE_CPU_SIMD_ATTENTION_MASK_H

#include "device/cpu/simd/gemm/small_gemm.h"

enum { BLOCK = 64 };   /* tokens of a block; a tile is BLOCK x BLOCK pairs */
enum { SUBTILE = 32 }; /* tokens of a sub-tile of the AMX path: amx_gemm.h */

/* Consecutive tokens [at, at + n), usually n <= BLOCK. */
typedef struct {
    int64_t at, n;
} TokenBlock;

static inline TokenBlock block_of(int64_t n, int64_t index)
{
    return (TokenBlock){index * BLOCK, min_i64(n - index * BLOCK, BLOCK)};
}

/* The mask of a block of queries: each attends to the keys in [lo[0], hi[0]) and [lo[1], hi[1]).
 * Indices are rows of k. Queries past the end of the block attend to none. */
typedef struct {
    int32_t lo[2][BLOCK], hi[2][BLOCK];
    int32_t from, to;         /* no query attends to a key outside */
    int32_t all_from, all_to; /* every query attends to all keys inside */
} Ranges;

typedef enum { EMPTY_TILE, PARTIAL_TILE, FULL_TILE } Coverage;

enum { GROUPS = BLOCK / SMALL_MR };

/* Per group of SMALL_MR tokens of one block: the hull [from, to) in the other block, widened to
 * whole pairs. from == to == 0: the group is masked completely. */
typedef struct {
    Coverage coverage;
    int from[GROUPS], to[GROUPS];
} Bounds;

typedef struct {
    Bounds queries, keys;
} TileBounds;

#define ranges_load CPU_NAME(ranges_load)
#define ranges_bound CPU_NAME(ranges_bound)
#define ranges_coverage CPU_NAME(ranges_coverage)
#define tile_bounds_of CPU_NAME(tile_bounds_of)
#define tile_bounds_widen CPU_NAME(tile_bounds_widen)

/* Local. Loads the ranges of a block of queries. key_at is the position of k's first row, keys its
 * number of rows; ranges are clipped to them. */
void ranges_load(const Tensor *ranges, int64_t key_at, int64_t keys, TokenBlock queries, Ranges *r);
/* Local. Sets from, to, all_from and all_to from the ranges of the first `queries` queries. */
void ranges_bound(Ranges *r, int64_t queries);
/* Local. The coverage of a tile. It is full only if one range of each query covers it: a tile that
 * only both ranges together cover is partial. */
Coverage ranges_coverage(const Ranges *r, int64_t queries, TokenBlock keys);
/* Local. The bounds of a tile, for both of its blocks. */
void tile_bounds_of(const Ranges *r, TokenBlock keys, Coverage coverage, TileBounds *out);
/* Local. Widens the bounds to whole sub-tiles: those that contain a visible pair. */
void tile_bounds_widen(TileBounds *bounds);

static inline VI vi_load(const int32_t *p)
{
    VI v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Indices of W consecutive keys. */
static inline VI keys_from(int64_t at)
{
    VI v = vi_set((int32_t)at);
    for (int i = 0; i < W; i++) v[i] += i;
    return v;
}

/* Lane mask: which of W queries, from `lane` on, attend to the key. */
static inline VI queries_attending(const Ranges *r, int lane, int64_t key)
{
    const VI k = vi_set((int32_t)key);
    return ((vi_load(&r->lo[0][lane]) <= k) & (k < vi_load(&r->hi[0][lane]))) |
           ((vi_load(&r->lo[1][lane]) <= k) & (k < vi_load(&r->hi[1][lane])));
}

/* Lane mask: which of W keys the query attends to. */
static inline VI keys_attended(const Ranges *r, int query, VI key)
{
    return ((key >= r->lo[0][query]) & (key < r->hi[0][query])) |
           ((key >= r->lo[1][query]) & (key < r->hi[1][query]));
}

/* A range of rows of a tile: all visible pairs of W lanes. */
typedef struct {
    int from, to;
} Hull;

/* The hull of W owners from `lane` on; {BLOCK, 0} if they are masked completely. */
static inline Hull lanes_hull(const Bounds *owners, int lane)
{
    Hull h = {BLOCK, 0};
    for (int g = lane / SMALL_MR; g < (lane + W) / SMALL_MR; g++) {
        if (owners->from[g] == owners->to[g]) continue;
        h.from = (int)min_i64(h.from, owners->from[g]);
        h.to = (int)max_i64(h.to, owners->to[g]);
    }
    return h;
}

/* The halves of 2 W lanes, from j on, whose scores a group needs. */
typedef enum { NO_HALF, LOWER_HALF, UPPER_HALF, BOTH_HALVES } Halves;

static inline Halves halves_needed(const Bounds *b, int group, int64_t j)
{
    const bool lower = b->from[group] < j + W && b->to[group] > j;
    const bool upper = b->from[group] < j + 2 * W && b->to[group] > j + W;
    return (Halves)((lower ? LOWER_HALF : NO_HALF) | (upper ? UPPER_HALF : NO_HALF));
}

#endif
