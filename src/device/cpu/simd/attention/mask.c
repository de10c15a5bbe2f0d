/* mask.c -- key ranges of queries, the coverage of tiles, and the bounds of groups. */
#include "device/cpu/simd/attention/mask.h"

static int32_t within(int64_t x, int64_t end) { return (int32_t)(x < 0 ? 0 : x > end ? end : x); }

void ranges_bound(Ranges *r, int64_t queries)
{
    r->from = r->all_to = queries > 0 ? INT32_MAX : 0;
    r->to = r->all_from = 0;
    for (int64_t i = 0; i < queries; i++) {
        for (int k = 0; k < 2; k++) {
            const bool none = r->lo[k][i] >= r->hi[k][i];
            if (!none && r->lo[k][i] < r->from) r->from = r->lo[k][i];
            if (!none && r->hi[k][i] > r->to) r->to = r->hi[k][i];
        }
        if (r->lo[0][i] > r->all_from) r->all_from = r->lo[0][i];
        if (r->hi[0][i] < r->all_to) r->all_to = r->hi[0][i];
    }
}

void ranges_load(const Tensor *ranges, int64_t key_at, int64_t keys, TokenBlock queries, Ranges *r)
{
    const int32_t *at = (const int32_t *)ranges->data + queries.at * ranges->stride[0];
    memset(r, 0, sizeof *r);
    for (int64_t i = 0; i < queries.n; i++, at += ranges->stride[0])
        for (int k = 0; k < 2; k++) {
            const int32_t *pair = at + 2 * k * ranges->stride[1];
            r->lo[k][i] = within(pair[0] - key_at, keys);
            r->hi[k][i] = within(pair[ranges->stride[1]] - key_at, keys);
        }
    ranges_bound(r, queries.n);
}

Coverage ranges_coverage(const Ranges *r, int64_t queries, TokenBlock keys)
{
    const int32_t from = (int32_t)keys.at, end = (int32_t)(keys.at + keys.n);
    int some = 0, all = keys.n == BLOCK;
    if (from >= r->to || end <= r->from) return EMPTY_TILE;
    if (all && from >= r->all_from && end <= r->all_to) return FULL_TILE;
    for (int64_t i = 0; i < queries; i++) {
        const int32_t lo0 = r->lo[0][i], hi0 = r->hi[0][i], lo1 = r->lo[1][i], hi1 = r->hi[1][i];
        some |= (lo0 < hi0 && lo0 < end && hi0 > from) | (lo1 < hi1 && lo1 < end && hi1 > from);
        all &= (lo0 <= from && hi0 >= end) | (lo1 <= from && hi1 >= end);
    }
    return !some ? EMPTY_TILE : all ? FULL_TILE : PARTIAL_TILE;
}

/* The hull of each query within the tile, extended to groups. Groups of keys get the hull of the
 * queries that attend to any of their keys. */
void tile_bounds_of(const Ranges *r, TokenBlock keys, Coverage coverage, TileBounds *out)
{
    out->queries.coverage = out->keys.coverage = coverage;
    for (int g = 0; g < GROUPS; g++) {
        const bool all = coverage == FULL_TILE;
        out->queries.from[g] = out->keys.from[g] = all ? 0 : BLOCK;
        out->queries.to[g] = out->keys.to[g] = all ? BLOCK : 0;
    }
    for (int i = 0; i < BLOCK && coverage == PARTIAL_TILE; i++) {
        int64_t lo = BLOCK, hi = 0;
        for (int k = 0; k < 2; k++) {
            if (r->lo[k][i] >= r->hi[k][i]) continue;
            lo = min_i64(lo, max_i64(r->lo[k][i] - keys.at, 0));
            hi = max_i64(hi, min_i64(r->hi[k][i] - keys.at, keys.n));
        }
        if (lo >= hi) continue;
        Bounds *q = &out->queries, *k = &out->keys;
        const int group = i / SMALL_MR, even = i & ~1;
        q->from[group] = (int)min_i64(q->from[group], lo & ~(int64_t)1);
        q->to[group] = (int)max_i64(q->to[group], (hi + 1) & ~(int64_t)1);
        for (int64_t g = lo / SMALL_MR; g <= (hi - 1) / SMALL_MR; g++) {
            k->from[g] = (int)min_i64(k->from[g], even);
            k->to[g] = (int)max_i64(k->to[g], even + 2);
        }
    }
    for (int g = 0; g < GROUPS; g++) { /* masked completely: an empty range at 0 */
        if (out->queries.to[g] == 0) out->queries.from[g] = 0;
        if (out->keys.to[g] == 0) out->keys.from[g] = 0;
    }
}

static void bounds_widen(Bounds *b)
{
    enum { GROUPS_PER_SUBTILE = SUBTILE / SMALL_MR };
    for (int g = 0; g < GROUPS; g += GROUPS_PER_SUBTILE) {
        int from = BLOCK, to = 0;
        for (int i = g; i < g + GROUPS_PER_SUBTILE; i++) {
            if (b->from[i] == b->to[i]) continue;
            from = (int)min_i64(from, b->from[i] / SUBTILE * SUBTILE);
            to = (int)max_i64(to, blocks_of(b->to[i], SUBTILE) * SUBTILE);
        }
        for (int i = g; i < g + GROUPS_PER_SUBTILE; i++) {
            b->from[i] = to > 0 ? from : 0;
            b->to[i] = to;
        }
    }
}

void tile_bounds_widen(TileBounds *bounds)
{
    bounds_widen(&bounds->queries);
    bounds_widen(&bounds->keys);
}
