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

enum { COMMON_CHANNELS = 64 }; /* channels of heads that products are compiled for */

#define LOG2_E 1.4426950408889634

enum { PANEL_DWORDS = BLOCK * MAX_CHANNELS };

/* Memory of a panel, or of a block's sums, on a cache line. */
typedef union {
    _Alignas(64) float f32[PANEL_DWORDS];
    uint32_t dwords[PANEL_DWORDS];
} PanelBuffer;

/* Rows of SPAN tokens, padded with zeros to whole vectors, one after another: as f32, or as words. It lies in
 * a Place, or with others side by side: SPAN times the padded channels. */
typedef struct {
    union {
        float *f32;
        uint32_t *dwords; /* [token][c / 2]: pairs of channels */
    };
    uint32_t
        *token_pairs; /* [token / 2][c]: pairs of tokens; by squares for gather [c][token / 2] */
} Panel;

/* [c][token], or as words [c / 2][token]; scores are to be multiplied by the factor. */
typedef struct {
    PanelBuffer buffer;
    float factor;
} TransposedPanel;

/* Rows that are read or written soon, asked for a few at a time while products are made: lines on their way
 * are some twenty at most, and who asks for more waits. A head's rows lie far apart, and no CPU guesses them.
 * The last list comes first. */
typedef struct {
    struct {
        const char *at;
        int64_t step, bytes, rows;
    } list[16];
    int n;
} PrefetchStack;

typedef struct AmxGemm AmxGemm;

/* How the products of a call are done. */
typedef struct {
    int64_t channels;
    bool bf16;
    const AmxGemm *amx;      /* of words too, or NULL */
    float factor;            /* scores are still to be multiplied by it: 1, but by squares */
    PrefetchStack *prefetch; /* or NULL */
} AttentionPath;

/* Scores [other][owner], and in their place the weights: as f32, or as words of two others. */
typedef struct {
    union {
        _Alignas(64) float f32[BLOCK][BLOCK];
        uint32_t other_pairs[BLOCK / 2]
                            [BLOCK]; /* lies on rows that are read already when it is written */
    };
    uint32_t owner_pairs[BLOCK]
                        [BLOCK / 2]; /* the same weights as words of two owners, for spread */
} Scores;

/* A block of a head's tokens, and sums for them: [SPAN][padded channels], or NULL. */
typedef struct {
    TokenBlock block;
    int64_t head;
    const float *sum;
} HeadBlock;

#define path_of CPU_NAME(path_of)
#define path_begin CPU_NAME(path_begin)
#define path_end CPU_NAME(path_end)
#define path_tile_bounds CPU_NAME(path_tile_bounds)
#define f32_score CPU_NAME(f32_score)
#define f32_accumulate_owner CPU_NAME(f32_accumulate_owner)
#define f32_accumulate_other CPU_NAME(f32_accumulate_other)
#define bf16_load CPU_NAME(bf16_load)
#define bf16_pair_tokens CPU_NAME(bf16_pair_tokens)
#define bf16_score CPU_NAME(bf16_score)
#define bf16_weights CPU_NAME(bf16_weights)
#define bf16_round CPU_NAME(bf16_round)
#define bf16_accumulate_owner CPU_NAME(bf16_accumulate_owner)
#define bf16_accumulate_other CPU_NAME(bf16_accumulate_other)
#define amx_score CPU_NAME(amx_score)
#define amx_accumulate_owner CPU_NAME(amx_accumulate_owner)
#define amx_accumulate_other CPU_NAME(amx_accumulate_other)
#define amx_transpose_pairs CPU_NAME(amx_transpose_pairs)
#define amx_gemm_in_use CPU_NAME(amx_gemm_in_use)
#define sums_as_rows CPU_NAME(sums_as_rows)
#define panel_load CPU_NAME(panel_load)
#define panel_pair_tokens CPU_NAME(panel_pair_tokens)
#define panel_transpose CPU_NAME(panel_transpose)
#define transpose_dwords CPU_NAME(transpose_dwords)
#define panel_prefetch CPU_NAME(panel_prefetch)
#define prefetch_push CPU_NAME(prefetch_push)
#define mask_lanes CPU_NAME(mask_lanes)
#define add_nonfinite_rows CPU_NAME(add_nonfinite_rows)
#define attention_is_decode CPU_NAME(attention_is_decode)
#define attention_decode CPU_NAME(attention_decode)

/* Few queries and many keys, as when sequences grow by a token: attention_few.c. */
bool attention_is_decode(const Call *call);
void attention_decode(const Call *call);

/* By words, where all of q, k, v and dout (or NULL) are bf16 and the CPU multiplies them best. */
AttentionPath path_of(const Call *call, const Tensor *dout);
/* Around a thread's products. */
void path_begin(AttentionPath path);
void path_end(AttentionPath path);

static inline int64_t padded(int64_t channels) { return pad_to(channels, SMALL_NR); }

/* What sums are made for: for each owner, or the other way for each other. */
typedef enum { SUM_OWNER, SUM_OTHER } SumSide;

/* One head of a block of x[t,h,c], as rows; by words as pairs too, before sums are made of it. */
void panel_load(AttentionPath path, const Tensor *x, TokenBlock block, int64_t head, Panel *p);
void panel_pair_tokens(AttentionPath path, SumSide side, Panel *p);
/* Asks for a block's rows, all at once. */
void panel_prefetch(const Tensor *x, TokenBlock block, int64_t head);
/* The same while products are made. A list that has no place is left out: it is a wish. */
void prefetch_push(PrefetchStack *a, const Tensor *x, TokenBlock block, int64_t head);

/* Some rows of the list; for each SMALL_MR of a product. */
static inline void prefetch_step(PrefetchStack *a)
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
void panel_transpose(AttentionPath path, const Panel *p, float factor, TransposedPanel *transposed);

/* W x W words of 32 bits: to[j][i] = from[i][j]. */
void transpose_dwords(const void *from, int64_t from_step, void *to, int64_t to_step);

static inline Panel panel_of(AttentionPath path, uint32_t *dwords)
{
    return (Panel){.dwords = dwords, .token_pairs = dwords + BLOCK * padded(path.channels) / 2};
}

static inline void sums_clear(float *sums, int64_t channels)
{
    memset(sums, 0, (size_t)(BLOCK * padded(channels)) * sizeof *sums);
}

/* What tokens of a tile can see of each other, in what is multiplied at once. */
void path_tile_bounds(AttentionPath path, const Ranges *r, TokenBlock keys, Coverage coverage,
                      TileBounds *out);

/* -inf for pairs of the lanes' hulls that are not seen; lanes are queries. */
void mask_lanes(const Ranges *r, TokenBlock keys, const Bounds *queries, Scores *s);

/* Products in f32: attention_floats.c. */
void f32_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, Scores *s);
void f32_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
void f32_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);

/* The same by words: attention_words.c. */
void bf16_load(const Tensor *x, TokenBlock block, int64_t head, Panel *p);
void bf16_pair_tokens(int64_t channels, Panel *p);
void bf16_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                const Bounds *b, Scores *s);
/* The weights 2^(s - base) of W lanes, in pairs; their sum. */
V bf16_weights(Scores *s, int lane, Hull hull, V base);
/* Weights that are f32 yet, to pairs. */
void bf16_round(Scores *s);
void bf16_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum);
void bf16_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum);

/* SQUARE others, and where their scores go: [other][SPAN owners]. */
typedef struct {
    int first;
    float *s;
} SubtileRow;

/* The same by squares: attention_squares.c. */
const AmxGemm *amx_gemm_in_use(void);
void amx_transpose_pairs(int64_t channels, Panel *p);
void amx_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, SubtileRow to);
void amx_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
void amx_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
/* Sums of owners as rows: where they are, or turned, in the room. */
const float *sums_as_rows(AttentionPath path, const float *sum, float *space);

/* s = factor * rows x turned, over the channels of a head, where rows see any of W lanes; not by squares. */
static inline void score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                         const Bounds *b, Scores *s)
{
    (path.bf16 ? bf16_score : f32_score)(path, rows, transposed, b, s);
}

/* Scores as the factor of a sum. */
typedef struct {
    const Scores *s;
    SumSide side;
} TileWeights;

/* sum[i][c] += weight (i, j) rows[j][c] for rows j that are not finite, within the bounds of i, where
 * the weight is not 0; such rows become 0. Whether there were any. */
bool add_nonfinite_rows(AttentionPath path, TileWeights weights, Panel *rows, const Bounds *b,
                        float *sum);

/* sum[owner][c] += s[other][owner] rows[other][c]. Whether rows are gone: who goes on with them loads them
 * again. */
static inline bool accumulate_owner(AttentionPath path, const Scores *s, Panel *rows,
                                    const Bounds *b, float *sum)
{
    const bool gone = b->coverage == PARTIAL_TILE &&
                      add_nonfinite_rows(path, (TileWeights){s, SUM_OWNER}, rows, b, sum);
    (path.amx    ? amx_accumulate_owner
     : path.bf16 ? bf16_accumulate_owner
                 : f32_accumulate_owner)(path, s, rows, b, sum);
    return gone;
}

/* The other way: sum[other][c] += s[other][owner] rows[owner][c] */
static inline bool accumulate_other(AttentionPath path, const Scores *s, Panel *rows,
                                    const Bounds *b, float *sum)
{
    const bool gone = b->coverage == PARTIAL_TILE &&
                      add_nonfinite_rows(path, (TileWeights){s, SUM_OTHER}, rows, b, sum);
    (path.amx    ? amx_accumulate_other
     : path.bf16 ? bf16_accumulate_other
                 : f32_accumulate_other)(path, s, rows, b, sum);
    return gone;
}

#endif
