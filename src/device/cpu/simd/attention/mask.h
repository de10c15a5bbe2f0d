/* mask.h -- which keys queries see: of all, of a tile, and of the parts of a tile.
 *
 *            keys ->   0     64    128                a mask is two ranges of keys per row; a tile
 *     queries     0  [tile][    ][    ]               that no row sees costs nothing, one that all
 *                64  [tile][tile][    ]               rows see whole needs no mask
 *               128  [    ][tile][tile]
 *
 * Of a tile that not all see whole, groups of SMALL_MR tokens multiply what is within their bounds:
 * the hull of what any of them sees. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_MASK_H
#define DEVICE_CPU_SIMD_ATTENTION_MASK_H

#include "device/cpu/simd/gemm/small_gemm.h"

enum { BLOCK = 64 };   /* tokens of a block */
enum { SUBTILE = 32 }; /* of it, where tiles multiply: squares.h */

typedef struct {
    int64_t at, n;
} TokenBlock;

static inline TokenBlock block_of(int64_t n, int64_t index)
{
    return (TokenBlock){index * BLOCK, least(n - index * BLOCK, BLOCK)};
}

/* Which keys, of all s, each query of a block sees: [lo, hi) twice; none past the block's end. */
typedef struct {
    int32_t lo[2][BLOCK], hi[2][BLOCK];
    int32_t from, to;         /* no query sees a key outside */
    int32_t all_from, all_to; /* every query sees the keys inside */
} Ranges;

typedef enum { EMPTY_TILE, PARTIAL_TILE, FULL_TILE } Coverage;

enum { GROUPS = BLOCK / SMALL_MR };

/* Of each group of tokens of one side: the tokens of the other that any of them sees, in whole pairs. */
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

void ranges_load(const Tensor *ranges, int64_t key_at, int64_t keys, TokenBlock queries, Ranges *r);
/* The bounds, from the ranges of so many queries. */
void ranges_bound(Ranges *r, int64_t queries);
Coverage ranges_coverage(const Ranges *r, int64_t queries, TokenBlock keys);
/* What tokens of a tile can see of each other. */
void tile_bounds_of(const Ranges *r, TokenBlock keys, Coverage coverage, TileBounds *out);
/* To whole squares: those that hold a pair that is seen, and all of each. */
void tile_bounds_widen(TileBounds *bounds);

static inline VI vi_load(const int32_t *p)
{
    VI v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Numbers of W keys. */
static inline VI keys_from(int64_t at)
{
    VI v = vi_set((int32_t)at);
    for (int i = 0; i < W; i++) v[i] += i;
    return v;
}

/* Who of W queries from `lane` on sees the key; which of W keys the query sees. */
static inline VI queries_attending(const Ranges *r, int lane, int64_t key)
{
    const VI k = vi_set((int32_t)key);
    return ((vi_load(&r->lo[0][lane]) <= k) & (k < vi_load(&r->hi[0][lane]))) |
           ((vi_load(&r->lo[1][lane]) <= k) & (k < vi_load(&r->hi[1][lane])));
}

static inline VI keys_attended(const Ranges *r, int query, VI key)
{
    return ((key >= r->lo[0][query]) & (key < r->hi[0][query])) |
           ((key >= r->lo[1][query]) & (key < r->hi[1][query]));
}

/* What any of W owners from `lane` on sees. */
typedef struct {
    int from, to;
} Hull;

static inline Hull lanes_hull(const Bounds *owners, int lane)
{
    Hull h = {BLOCK, 0};
    for (int g = lane / SMALL_MR; g < (lane + W) / SMALL_MR; g++) {
        if (owners->from[g] == owners->to[g]) continue;
        h.from = (int)least(h.from, owners->from[g]);
        h.to = (int)most(h.to, owners->to[g]);
    }
    return h;
}

/* Which of 2 W lanes from j on a group needs scores of. */
typedef enum { NO_HALF, LOWER_HALF, UPPER_HALF, BOTH_HALVES } Halves;

static inline Halves halves_needed(const Bounds *b, int group, int64_t j)
{
    const bool lower = b->from[group] < j + W && b->to[group] > j;
    const bool upper = b->from[group] < j + 2 * W && b->to[group] > j + W;
    return (Halves)((lower ? LOWER_HALF : NO_HALF) | (upper ? UPPER_HALF : NO_HALF));
}

#endif
