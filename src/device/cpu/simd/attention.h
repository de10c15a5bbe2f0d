/* attention.h -- tiles of the score matrix, for attention and its gradient.
 *
 *            keys ->   0     64    128                a mask is two ranges of keys per row; a tile
 *     queries     0  [tile][    ][    ]               that no row sees costs nothing, one that all
 *                64  [tile][tile][    ]               rows see whole needs no mask
 *               128  [    ][tile][tile]
 *
 * Of each sum there is one owner: a block of queries (o, dq) or of keys (dk, dv). The owner's block
 * is turned once, so that its tokens are the lanes of vectors; the other side's blocks are copied
 * as rows. Then scores are rows(other) x lanes(owner), statistics of queries are vectors, and every
 * product is one that micro.h does without packing:
 *
 *     s [other, owner]      = rows [other, c]  turned [c, owner]
 *     sum [owner, c]       += s' [owner, other]  rows [other, c]
 *
 * A weight of a pair that is not seen is 0, but 0 times what is not finite is not. So in a tile that
 * not all see whole, rows that are not finite are added pair by pair, and left out of the product. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_H
#define DEVICE_CPU_SIMD_ATTENTION_H

#include "device/cpu/simd/math.h"
#include "device/cpu/simd/micro.h"
#include "device/heads.h"

enum { SPAN = 64, CHANNELS = 256 }; /* tokens of a block; channels of a head at most */

typedef struct {
    int64_t at, n;
} Block;

static inline Block block_of(int64_t n, int64_t index)
{
    return (Block){index * SPAN, least(n - index * SPAN, SPAN)};
}

/* Which keys, of all s, each query of a block sees: [lo, hi) twice; none past the block's end. */
typedef struct {
    int32_t lo[2][SPAN], hi[2][SPAN];
} Ranges;

typedef enum { SEEN_BY_NONE, SEEN_BY_SOME, SEEN_BY_ALL } Sight;

/* Rows of SPAN tokens, padded with zeros to whole vectors, one after another. */
typedef struct {
    float at[SPAN * CHANNELS];
} Panel;

typedef float Scores[SPAN][SPAN]; /* [other][owner] */

/* A block of a head's tokens, and sums for them: [SPAN][padded channels], or NULL. */
typedef struct {
    Block block;
    int64_t head;
    float *sum;
} Rows;

#define ranges_load CPU_NAME(ranges_load)
#define ranges_sight CPU_NAME(ranges_sight)
#define panel_load CPU_NAME(panel_load)
#define panel_turn CPU_NAME(panel_turn)
#define panel_fetch CPU_NAME(panel_fetch)
#define hide_from_lanes CPU_NAME(hide_from_lanes)
#define hide_lanes CPU_NAME(hide_lanes)
#define add_wild_rows CPU_NAME(add_wild_rows)
#define attention_is_few CPU_NAME(attention_is_few)
#define attention_few CPU_NAME(attention_few)

/* Few queries and many keys, as when sequences grow by a token: attention_few.c. */
bool attention_is_few(const Call *call);
void attention_few(const Call *call);

void ranges_load(const Tensor *ranges, int64_t key_at, int64_t keys, Block queries, Ranges *r);
Sight ranges_sight(const Ranges *r, int64_t queries, Block keys);

static inline int64_t padded(int64_t channels) { return pad_to(channels, MICRO_COLUMNS); }

/* One head of a block of x[t,h,c]. */
void panel_load(const Tensor *x, Block block, int64_t head, Panel *p);
/* Asks for what panel_load will read: a head's rows lie pages apart, and no CPU guesses that. Half
 * of the time of a tile was waiting without it. */
void panel_fetch(const Tensor *x, Block block, int64_t head);
/* turned[c][token] = factor * p[token][c]. */
void panel_turn(const Panel *p, int64_t channels, float factor, Panel *turned);

static inline void panel_clear(Panel *p, int64_t channels)
{
    memset(p->at, 0, (size_t)(SPAN * padded(channels)) * sizeof *p->at);
}

static inline void panel_scale(float *at, int64_t channels, float factor)
{
    const int64_t n = SPAN * padded(channels);
    for (int64_t i = 0; i < n; i += W) v_store(at + i, factor * v_load(at + i));
}

/* `instead` for pairs that are not seen; lanes are queries, lanes are keys. */
void hide_from_lanes(const Ranges *r, Block keys, float instead, Scores s);
void hide_lanes(const Ranges *r, Block keys, float instead, Scores s);

/* s = rows x turned, over the channels of a head. */
static inline void score(const Panel *rows, const Panel *turned, int64_t channels, Scores s)
{
    product(SPAN, SPAN, channels, (Matrix){rows->at, padded(channels), 1}, turned->at, SPAN,
            &s[0][0], SPAN, PRODUCT_SET);
}

/* sum[i][c] += weight (i, j) rows[j][c] for rows j that are not finite, where the weight is not 0;
 * such rows become 0. */
void add_wild_rows(Matrix weight, Panel *rows, int64_t channels, float *sum);

/* sum[owner][c] += s[other][owner] rows[other][c] */
static inline void gather(Scores s, Panel *rows, int64_t channels, Sight sight, Panel *sum)
{
    const int64_t step = padded(channels);
    const Matrix weight = {&s[0][0], 1, SPAN};
    if (sight == SEEN_BY_SOME) add_wild_rows(weight, rows, channels, sum->at);
    product(SPAN, step, SPAN, weight, rows->at, step, sum->at, step, PRODUCT_ADD);
}

/* The other way: sum[other][c] += s[other][owner] rows[owner][c] */
static inline void spread(Scores s, Panel *rows, int64_t channels, Sight sight, float *sum)
{
    const int64_t step = padded(channels);
    const Matrix weight = {&s[0][0], SPAN, 1};
    if (sight == SEEN_BY_SOME) add_wild_rows(weight, rows, channels, sum);
    product(SPAN, step, SPAN, weight, rows->at, step, sum, step, PRODUCT_ADD);
}

/* Channels of one head of one token of x[t,h,c]. */
static inline Row head_row(const Tensor *x, int64_t token, int64_t head)
{
    return row_at(x, token * x->stride[0] + head * x->stride[1], x->stride[2]);
}

#endif
