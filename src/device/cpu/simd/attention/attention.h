/* attention.h -- tiles of the score matrix, for attention and its gradient.
 *
 * Of each sum there is one owner: a block of queries (o, dq) or of keys (dk, dv). The owner's block
 * is turned once, so that its tokens are the lanes of vectors; the other side's blocks are copied
 * as rows. Then scores are rows(other) x lanes(owner), statistics of queries are vectors, and every
 * product is one that small_gemm.h does without packing:
 *
 *     s [other, owner]      = rows [other, c]  turned [c, owner]
 *     sum [owner, c]       += s' [owner, other]  rows [other, c]
 *
 * Products of bf16 are by words, where the CPU's unit for them is MICROKERNEL_DOT or MICROKERNEL_AMX: a word is two bf16
 * that are neighbours in the sum, and weights are rounded to bf16 as they are made (attention_words.c). By
 * tiles, products are of squares, and sums of owners are turned (attention_squares.c). Else all is f32.
 *
 * Which pairs of a tile are seen, and so multiplied: attention_sight.h.
 *
 * A weight of a pair that is not seen is 0, but 0 times what is not finite is not. So in a tile that
 * not all see whole, rows that are not finite are added pair by pair, and left out of the product. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_ATTENTION_H
#define DEVICE_CPU_SIMD_ATTENTION_ATTENTION_H

#include "device/cpu/thread_workspace.h"
#include "device/cpu/simd/attention/head_rows.h"
#include "device/cpu/simd/attention/mask.h"
#include "device/cpu/simd/math.h"
#include "device/heads.h"

enum { USUAL = 64 }; /* channels of heads that products are compiled for */

#define LOG2_E 1.4426950408889634

enum { PANEL_WORDS = SPAN * CHANNELS };

/* Memory of a panel, or of a block's sums, on a cache line. */
typedef union {
    _Alignas(64) float at[PANEL_WORDS];
    uint32_t words[PANEL_WORDS];
} Place;

/* Rows of SPAN tokens, padded with zeros to whole vectors, one after another: as f32, or as words. It lies in
 * a Place, or with others side by side: SPAN times the padded channels. */
typedef struct {
    union {
        float *at;
        uint32_t *rows; /* [token][c / 2]: pairs of channels */
    };
    uint32_t *pairs; /* [token / 2][c]: pairs of tokens; by squares for gather [c][token / 2] */
} Panel;

/* [c][token], or as words [c / 2][token]; scores are to be multiplied by the factor. */
typedef struct {
    Place place;
    float factor;
} Turned;

/* Rows that are read or written soon, asked for a few at a time while products are made: lines on their way
 * are some twenty at most, and who asks for more waits. A head's rows lie far apart, and no CPU guesses them.
 * The last list comes first. */
typedef struct {
    struct {
        const char *at;
        int64_t step, bytes, rows;
    } list[16];
    int n;
} Ahead;

typedef struct Squares Squares;

/* How the products of a call are done. */
typedef struct {
    int64_t channels;
    bool words;
    const Squares *squares; /* of words too, or NULL */
    float factor;           /* scores are still to be multiplied by it: 1, but by squares */
    Ahead *ahead;           /* or NULL */
} Way;

/* Scores [other][owner], and in their place the weights: as f32, or as words of two others. */
typedef struct {
    union {
        _Alignas(64) float at[SPAN][SPAN];
        uint32_t pairs[SPAN / 2][SPAN]; /* lies on rows that are read already when it is written */
    };
    uint32_t halves[SPAN][SPAN / 2]; /* the same weights as words of two owners, for spread */
} Scores;

/* A block of a head's tokens, and sums for them: [SPAN][padded channels], or NULL. */
typedef struct {
    Block block;
    int64_t head;
    const float *sum;
} Rows;

#define way_of CPU_NAME(way_of)
#define way_begin CPU_NAME(way_begin)
#define way_end CPU_NAME(way_end)
#define way_reach CPU_NAME(way_reach)
#define floats_score CPU_NAME(floats_score)
#define floats_gather CPU_NAME(floats_gather)
#define floats_spread CPU_NAME(floats_spread)
#define words_load CPU_NAME(words_load)
#define words_pair CPU_NAME(words_pair)
#define words_score CPU_NAME(words_score)
#define words_weigh CPU_NAME(words_weigh)
#define words_round CPU_NAME(words_round)
#define words_gather CPU_NAME(words_gather)
#define words_spread CPU_NAME(words_spread)
#define squares_score CPU_NAME(squares_score)
#define squares_gather CPU_NAME(squares_gather)
#define squares_spread CPU_NAME(squares_spread)
#define squares_turn CPU_NAME(squares_turn)
#define squares_in_use CPU_NAME(squares_in_use)
#define sums_rows CPU_NAME(sums_rows)
#define panel_load CPU_NAME(panel_load)
#define panel_pair CPU_NAME(panel_pair)
#define panel_turn CPU_NAME(panel_turn)
#define turn_square CPU_NAME(turn_square)
#define panel_fetch CPU_NAME(panel_fetch)
#define ahead_add CPU_NAME(ahead_add)
#define hide_from_lanes CPU_NAME(hide_from_lanes)
#define add_wild_rows CPU_NAME(add_wild_rows)
#define attention_is_few CPU_NAME(attention_is_few)
#define attention_few CPU_NAME(attention_few)

/* Few queries and many keys, as when sequences grow by a token: attention_few.c. */
bool attention_is_few(const Call *call);
void attention_few(const Call *call);

/* By words, where all of q, k, v and dout (or NULL) are bf16 and the CPU multiplies them best. */
Way way_of(const Call *call, const Tensor *dout);
/* Around a thread's products. */
void way_begin(Way way);
void way_end(Way way);

static inline int64_t padded(int64_t channels) { return pad_to(channels, SMALL_NR); }

/* What sums are made for: for each owner, or the other way for each other. */
typedef enum { GATHER, SPREAD } Turn;

/* One head of a block of x[t,h,c], as rows; by words as pairs too, before sums are made of it. */
void panel_load(Way way, const Tensor *x, Block block, int64_t head, Panel *p);
void panel_pair(Way way, Turn turn, Panel *p);
/* Asks for a block's rows, all at once. */
void panel_fetch(const Tensor *x, Block block, int64_t head);
/* The same while products are made. A list that has no place is left out: it is a wish. */
void ahead_add(Ahead *a, const Tensor *x, Block block, int64_t head);

/* Some rows of the list; for each SMALL_MR of a product. */
static inline void ahead_some(Ahead *a)
{
    if (!a || a->n == 0) return;
    const int last = a->n - 1;
    for (int i = 0; i < 3 && a->list[last].rows > 0; i++, a->list[last].rows--) {
        for (int64_t b = 0; b < a->list[last].bytes; b += 64)
            __builtin_prefetch(a->list[last].at + b, 0, 2);
        a->list[last].at += a->list[last].step;
    }
    if (a->list[last].rows == 0) a->n--;
}

/* turned[c][token] = p[token][c]; scores of it are to be multiplied by the factor. */
void panel_turn(Way way, const Panel *p, float factor, Turned *turned);

/* W x W words of 32 bits: to[j][i] = from[i][j]. */
void turn_square(const void *from, int64_t from_step, void *to, int64_t to_step);

static inline Panel panel_of(Way way, uint32_t *words)
{
    return (Panel){.rows = words, .pairs = words + SPAN * padded(way.channels) / 2};
}

static inline void sums_clear(float *sums, int64_t channels)
{
    memset(sums, 0, (size_t)(SPAN * padded(channels)) * sizeof *sums);
}

/* What tokens of a tile can see of each other, in what is multiplied at once. */
void way_reach(Way way, const Ranges *r, Block keys, Sight sight, Reach *out);

/* -inf for pairs of the lanes' hulls that are not seen; lanes are queries. */
void hide_from_lanes(const Ranges *r, Block keys, const Bounds *queries, Scores *s);

/* Products in f32: attention_floats.c. */
void floats_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b, Scores *s);
void floats_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);
void floats_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);

/* The same by words: attention_words.c. */
void words_load(const Tensor *x, Block block, int64_t head, Panel *p);
void words_pair(int64_t channels, Panel *p);
void words_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b, Scores *s);
/* The weights 2^(s - base) of W lanes, in pairs; their sum. */
V words_weigh(Scores *s, int lane, Hull hull, V base);
/* Weights that are f32 yet, to pairs. */
void words_round(Scores *s);
void words_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);
void words_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);

/* SQUARE others, and where their scores go: [other][SPAN owners]. */
typedef struct {
    int other;
    float *s;
} Strip;

/* The same by squares: attention_squares.c. */
const Squares *squares_in_use(void);
void squares_turn(int64_t channels, Panel *p);
void squares_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b, Strip strip);
void squares_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);
void squares_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum);
/* Sums of owners as rows: where they are, or turned, in the room. */
const float *sums_rows(Way way, const float *sum, float *room);

/* s = factor * rows x turned, over the channels of a head, where rows see any of W lanes; not by squares. */
static inline void score(Way way, const Panel *rows, const Turned *turned, const Bounds *b,
                         Scores *s)
{
    (way.words ? words_score : floats_score)(way, rows, turned, b, s);
}

/* Scores as the factor of a sum. */
typedef struct {
    const Scores *s;
    Turn turn;
} Weights;

/* sum[i][c] += weight (i, j) rows[j][c] for rows j that are not finite, within the bounds of i, where
 * the weight is not 0; such rows become 0. Whether there were any. */
bool add_wild_rows(Way way, Weights weights, Panel *rows, const Bounds *b, float *sum);

/* sum[owner][c] += s[other][owner] rows[other][c]. Whether rows are gone: who goes on with them loads them
 * again. */
static inline bool gather(Way way, const Scores *s, Panel *rows, const Bounds *b, float *sum)
{
    const bool gone =
        b->sight == SEEN_BY_SOME && add_wild_rows(way, (Weights){s, GATHER}, rows, b, sum);
    (way.squares ? squares_gather : way.words ? words_gather : floats_gather)(way, s, rows, b, sum);
    return gone;
}

/* The other way: sum[other][c] += s[other][owner] rows[owner][c] */
static inline bool spread(Way way, const Scores *s, Panel *rows, const Bounds *b, float *sum)
{
    const bool gone =
        b->sight == SEEN_BY_SOME && add_wild_rows(way, (Weights){s, SPREAD}, rows, b, sum);
    (way.squares ? squares_spread : way.words ? words_spread : floats_spread)(way, s, rows, b, sum);
    return gone;
}

#endif
