/* attention.h -- tiles of the score matrix, for attention and its gradient.
 *
 *            keys ->   0     32    64    96           a mask is two ranges of keys per row;
 *     queries     0  [tile][    ][    ][    ]         a tile that no row sees costs nothing,
 *                32  [tile][tile][    ][    ]         and in a tile that some row sees, each row
 *                64  [    ][tile][tile][    ]         touches its own keys alone */
#ifndef DEVICE_REF_ATTENTION_H
#define DEVICE_REF_ATTENTION_H

#include <stdbool.h>
#include "device/heads.h"
#include "device/ref/ref.h"

/* The size of a tile, and the channels of an output that a tile sums at once. A head with more
 * channels is summed in parts, each of which recomputes the scores: memory does not grow with the
 * head. */
enum { QUERIES = 32, KEYS = 32, CHANNELS = 128 };

/* A part of the tokens, or of the channels. */
typedef struct {
    int64_t at, n;
} Block;

static inline Block block_of(int64_t n, int64_t size, int64_t index)
{
    return (Block){index * size, min_i64(n - index * size, size)};
}

/* The number of parts of the channels. At least one: lse is written even if there are no
 * channels. */
static inline int64_t channel_parts(const Tensor *q)
{
    return max_i64(blocks_of(q->n[2], CHANNELS), 1);
}

/* The keys of the tile that each row sees: [lo, hi) for each of its two ranges. */
typedef struct {
    int lo[QUERIES][2], hi[QUERIES][2];
} TileMask;

/* Channels of one head of one token of x[t,h,c]. */
static inline RowRef head_row(const Tensor *x, int64_t token, int64_t head)
{
    return row_at(x, token * x->stride[0] + head * x->stride[1], x->stride[2]);
}

/* Returns false if no row of the tile sees any of its keys. `key_at` is of attr.attention. */
bool tile_mask(const Tensor *ranges, int64_t key_at, Block queries, Block keys, TileMask *mask);

/* Channels of one head of a block of tokens of x[t,h,c]. */
typedef struct {
    const Tensor *x;
    Block tokens;
    int64_t head;
} HeadTokens;

/* s[i][j] = factor * (row i of a . row j of b) for the keys that row i sees, else 0. */
void tile_scores(HeadTokens a, HeadTokens b, double factor, const TileMask *mask,
                 double s[QUERIES][KEYS]);

#endif
