/* attention_tile.c -- the mask of a tile, and its scores. */
#include "device/ref/attention.h"

#include <string.h>

enum { PART = 64 }; /* channels packed at once */

bool tile_mask(const Tensor *ranges, int64_t key_at, Block queries, Block keys, TileMask *mask)
{
    const int64_t first = key_at + keys.at;
    bool any = false;
    for (int64_t i = 0; i < queries.n; i++)
        for (int r = 0; r < 2; r++) {
            const int32_t *range = (const int32_t *)ranges->data +
                                   (queries.at + i) * ranges->stride[0] + 2 * r * ranges->stride[1];
            const int64_t lo = max_i64(range[0] - first, 0);
            const int64_t hi = min_i64(range[ranges->stride[1]] - first, keys.n);
            mask->lo[i][r] = lo < hi ? (int)lo : 0;
            mask->hi[i][r] = lo < hi ? (int)hi : 0;
            any |= lo < hi;
        }
    return any;
}

static bool row_has_keys(const TileMask *mask, int64_t i)
{
    return mask->hi[i][0] > 0 || mask->hi[i][1] > 0;
}

/* Packs a part of the channels of the keys, channel by channel: neighbors in memory are keys. */
static void pack_keys(HeadTokens b, Block part, double packed[PART][KEYS])
{
    double x[PART];
    for (int64_t j = 0; j < b.tokens.n; j++) {
        row_load(head_row(b.x, b.tokens.at + j, b.head), part.at, part.n, x);
        for (int64_t c = 0; c < part.n; c++) packed[c][j] = x[c];
    }
}

void tile_scores(HeadTokens a, HeadTokens b, double factor, const TileMask *mask,
                 double s[QUERIES][KEYS])
{
    double packed[PART][KEYS], x[PART];
    memset(s, 0, sizeof(double[QUERIES][KEYS]));
    for (int64_t p = 0; p < blocks_of(a.x->n[2], PART); p++) {
        const Block part = block_of(a.x->n[2], PART, p);
        pack_keys(b, part, packed);
        for (int64_t i = 0; i < a.tokens.n; i++) {
            if (!row_has_keys(mask, i)) continue;
            row_load(head_row(a.x, a.tokens.at + i, a.head), part.at, part.n, x);
            for (int r = 0; r < 2; r++)
                for (int64_t c = 0; c < part.n; c++)
                    for (int j = mask->lo[i][r]; j < mask->hi[i][r]; j++)
                        s[i][j] += x[c] * packed[c][j];
        }
    }
    for (int64_t i = 0; i < a.tokens.n; i++)
        for (int r = 0; r < 2; r++)
            for (int j = mask->lo[i][r]; j < mask->hi[i][r]; j++) s[i][j] *= factor;
}
