/* attention.h -- FlashAttention on the CPU: tiles of the score matrix, forward and backward.
 *
 * The score matrix is never stored. It is computed in tiles of BLOCK x BLOCK pairs, for one head at
 * a time. Forward, a block of queries visits the blocks of keys that its mask reaches, and carries
 * (max, sum, o) from tile to tile:
 *
 *                    k, v block 0    k, v block 1    k, v block 2
 *     q block        [ s, p tile ]-->[ s, p tile ]-->[   empty   ]
 *                    max, sum, o     max, sum, o     not computed      o / sum, lse
 *
 *     s = log2(e) scale q k'    max' = max(max, s)    p = 2^(s - max')
 *     sum = sum 2^(max - max') + rowsum(p)            o = o 2^(max - max') + p v
 *
 * The backward pass recomputes p from q, k and lse, tile by tile: backward.h.
 *
 * The GEMMs of a tile treat its two blocks of tokens differently. The owner is the block whose
 * tokens are the columns of the tile, so they are the lanes of vectors. The other block's tokens
 * are the rows of the tile. The owner is transposed once per block, and every GEMM then reads its
 * operands without packing:
 *
 *                          transposed [c, owner]
 *                         +-----------+
 *     rows [other, c]     |           |
 *     +------+            +-----------+
 *     |      |            s [other, owner]                                     score
 *     +------+
 *                     sum [owner, c] += s' [owner, other]  rows [other, c]     accumulate_owner
 *                     sum [other, c] += s [other, owner]   rows [owner, c]     accumulate_other
 *
 *     pass                owner      other      sums of the owner    sums of the other
 *     forward             queries    keys       o
 *     forward, AMX        keys       queries                         o
 *     backward, dq        queries    keys       dq
 *     backward, dk, dv    keys       queries    dk, dv
 *     backward, one pass  keys       queries    dk, dv               dq
 *
 * There are three kernel paths. A dword is one f32, or a VNNI pair: two bf16 that are adjacent
 * along the inner dimension of a GEMM.
 *
 *     path      operands       p, ds    GEMMs
 *     f32       f32            f32      f32.c: FMA, for all types and instruction sets
 *     bf16      VNNI pairs     bf16     bf16_dot.c: AVX512-BF16, if MICROKERNEL_DOT is in use
 *     AMX       VNNI pairs     bf16     amx.c: sub-tiles of 32 x 32, if MICROKERNEL_AMX is in use
 *
 * The mask decides which tiles and which parts of a tile are multiplied: mask.h. The weight of a
 * masked pair is 0, but 0 times a value that is not finite is NaN. In a partial tile, rows that are
 * not finite are therefore added pair by pair and left out of the GEMM: nonfinite.c. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_ATTENTION_H
#define DEVICE_CPU_SIMD_ATTENTION_ATTENTION_H

#include "device/cpu/thread_workspace.h"
#include "device/cpu/simd/attention/head_rows.h"
#include "device/cpu/simd/attention/mask.h"
#include "device/cpu/simd/math.h"
#include "device/heads.h"

enum { COMMON_CHANNELS = 64 }; /* of a head; the tile GEMMs are also compiled for this constant */

#define LOG2_E 1.4426950408889634

enum { PANEL_DWORDS = BLOCK * MAX_CHANNELS };

/* Memory of a panel or of a block's sums, aligned to a cache line. */
typedef union {
    _Alignas(64) float f32[PANEL_DWORDS];
    uint32_t dwords[PANEL_DWORDS];
} PanelBuffer;

/* One head of BLOCK tokens, copied to contiguous rows. Channels are padded with zeros to
 * padded(channels), and missing tokens are zero rows. A panel takes BLOCK * padded(channels) dwords
 * of a PanelBuffer or of a larger array. On the bf16 paths its first half is `dwords`, its second
 * half `token_pairs`. */
typedef struct {
    union {
        float *f32;       /* [token][c] */
        uint32_t *dwords; /* [token][c / 2]: pairs of channels, read by score */
    };
    /* [token / 2][c]: pairs of tokens, read by accumulate_*. AMX, SUM_OWNER: [c][token / 2]. */
    uint32_t *token_pairs;
} Panel;

/* A panel as [c][token] of f32, or [c / 2][token] of channel pairs. */
typedef struct {
    PanelBuffer buffer;
    float factor; /* score multiplies by it; the AMX path does not: AttentionPath.factor */
} TransposedPanel;

/* Rows that will be read or written soon. The GEMMs prefetch a few of them at a time: a core has
 * about twenty line-fill buffers, and more prefetches than that stall its loads. The rows of a head
 * are far apart, so hardware prefetchers do not find them. Last pushed is first prefetched. */
typedef struct {
    struct {
        const char *at;
        int64_t step, bytes, rows; /* bytes between rows, of a row; rows still to prefetch */
    } list[16];
    int n;
} PrefetchStack;

typedef struct AmxGemm AmxGemm;

/* The kernel path of a call: how its GEMMs are computed. */
typedef struct {
    int64_t channels;
    bool bf16;               /* operands are VNNI pairs: the bf16 and AMX paths */
    const AmxGemm *amx;      /* not NULL: the AMX path */
    float factor;            /* of scores after the GEMM: log2(e) * scale on the AMX path, else 1 */
    PrefetchStack *prefetch; /* or NULL */
} AttentionPath;

/* A tile: scores [other][owner], then the weights (p or ds) in the same memory. */
typedef struct {
    union {
        _Alignas(64) float f32[BLOCK][BLOCK];
        /* Pairs of others. RowRef i overlays f32 rows that are read before it is written. */
        uint32_t other_pairs[BLOCK / 2][BLOCK];
    };
    /* The same weights as pairs of owners, for accumulate_other. */
    uint32_t owner_pairs[BLOCK][BLOCK / 2];
} Scores;

/* A block of one head's tokens, and its sums [BLOCK][padded channels] or NULL. */
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

/* Local. The decode path, for few queries with many cached keys: decode.c. */
bool attention_is_decode(const Call *call);
void attention_decode(const Call *call);

/* Local. Selects bf16 or AMX if q, k, v and dout (may be NULL) are all bf16 and the micro-kernel in
 * use multiplies bf16; else f32. */
AttentionPath path_of(const Call *call, const Tensor *dout);
/* Local. Around the GEMMs of a thread: configures and releases the AMX tiles. */
void path_begin(AttentionPath path);
void path_end(AttentionPath path);

static inline int64_t padded(int64_t channels) { return pad_to(channels, SMALL_NR); }

/* The block that accumulates: accumulate_owner or accumulate_other. */
typedef enum { SUM_OWNER, SUM_OTHER } SumSide;

/* Local. Loads one head of a block of x[t,h,c] into a panel's rows. */
void panel_load(AttentionPath path, const Tensor *x, TokenBlock block, int64_t head, Panel *p);
/* Local. Writes token_pairs from the rows, in the order that accumulate_* of that side reads. Does
 * nothing on the f32 path. */
void panel_pair_tokens(AttentionPath path, SumSide side, Panel *p);
/* Local. Prefetches all rows of a block at once. */
void panel_prefetch(const Tensor *x, TokenBlock block, int64_t head);
/* Local. Queues the rows of a block for prefetch_step. Drops them if the stack is full or channels
 * are not contiguous; prefetches are hints. */
void prefetch_push(PrefetchStack *a, const Tensor *x, TokenBlock block, int64_t head);

/* Local. Prefetches the next three rows of the top entry into L2. The GEMMs call it once per
 * SMALL_MR rows of a result, or once per sub-tile. */
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

/* Local. transposed[c][token] = p[token][c], in dwords. */
void panel_transpose(AttentionPath path, const Panel *p, float factor, TransposedPanel *transposed);

/* Local. to[j][i] = from[i][j], for W x W dwords; steps in dwords. */
void transpose_dwords(const void *from, int64_t from_step, void *to, int64_t to_step);

static inline Panel panel_of(AttentionPath path, uint32_t *dwords)
{
    return (Panel){.dwords = dwords, .token_pairs = dwords + BLOCK * padded(path.channels) / 2};
}

static inline void sums_clear(float *sums, int64_t channels)
{
    memset(sums, 0, (size_t)(BLOCK * padded(channels)) * sizeof *sums);
}

/* Local. The bounds of a tile in the granularity of the path: groups, or sub-tiles for AMX. */
void path_tile_bounds(AttentionPath path, const Ranges *r, TokenBlock keys, Coverage coverage,
                      TileBounds *out);

/* Local. Sets masked pairs inside the lanes' hulls to -inf. The owner is a block of queries. */
void mask_lanes(const Ranges *r, TokenBlock keys, const Bounds *queries, Scores *s);

/* Local. The GEMMs of the f32 path: f32.c. */
void f32_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, Scores *s);
void f32_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
void f32_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);

/* Local. The bf16 path: bf16_dot.c. Loading, token pairs and weights also serve the AMX path. */
void bf16_load(const Tensor *x, TokenBlock block, int64_t head, Panel *p);
void bf16_pair_tokens(int64_t channels, Panel *p);
void bf16_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                const Bounds *b, Scores *s);
/* Local. Replaces the scores of W lanes in the hull by other_pairs of 2^(s - base). Returns the
 * sum of each lane, before rounding to bf16. */
V bf16_weights(Scores *s, int lane, Hull hull, V base);
/* Local. Rounds f32 weights to other_pairs. */
void bf16_round(Scores *s);
void bf16_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum);
void bf16_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum);

/* A row of sub-tiles: SUBTILE others from `first` on, whose scores [other][BLOCK] go to s. */
typedef struct {
    int first;
    float *s;
} SubtileRow;

/* Local. The AMX path: amx.c. amx_gemm_in_use returns NULL if the micro-kernel is not AMX. */
const AmxGemm *amx_gemm_in_use(void);
void amx_transpose_pairs(int64_t channels, Panel *p);
void amx_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, SubtileRow to);
void amx_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
void amx_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum);
/* Local. An owner's sums as rows [owner][c]. AMX stores them as [c][owner]: transposes them into
 * `space`. Other paths: returns sum. */
const float *sums_as_rows(AttentionPath path, const float *sum, float *space);

/* s = factor * rows x transposed, where the bounds need it; not on the AMX path. */
static inline void score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                         const Bounds *b, Scores *s)
{
    (path.bf16 ? bf16_score : f32_score)(path, rows, transposed, b, s);
}

/* The weights of a tile, and the side that they accumulate for. */
typedef struct {
    const Scores *s;
    SumSide side;
} TileWeights;

/* Local. For rows j that are not finite: sum[i][c] += weight(i, j) rows[j][c] where j is within the
 * bounds of i and the weight is not 0; then clears row j. Returns true if there was such a row. */
bool add_nonfinite_rows(AttentionPath path, TileWeights weights, Panel *rows, const Bounds *b,
                        float *sum);

/* sum[owner][c] += s[other][owner] rows[other][c]. Returns true if rows were cleared: the caller
 * must load the panel again before its next use. */
static inline bool accumulate_owner(AttentionPath path, const Scores *s, Panel *rows,
                                    const Bounds *b, float *sum)
{
    const bool cleared = b->coverage == PARTIAL_TILE &&
                         add_nonfinite_rows(path, (TileWeights){s, SUM_OWNER}, rows, b, sum);
    (path.amx    ? amx_accumulate_owner
     : path.bf16 ? bf16_accumulate_owner
                 : f32_accumulate_owner)(path, s, rows, b, sum);
    return cleared;
}

/* sum[other][c] += s[other][owner] rows[owner][c]. Returns as accumulate_owner. */
static inline bool accumulate_other(AttentionPath path, const Scores *s, Panel *rows,
                                    const Bounds *b, float *sum)
{
    const bool cleared = b->coverage == PARTIAL_TILE &&
                         add_nonfinite_rows(path, (TileWeights){s, SUM_OTHER}, rows, b, sum);
    (path.amx    ? amx_accumulate_other
     : path.bf16 ? bf16_accumulate_other
                 : f32_accumulate_other)(path, s, rows, b, sum);
    return cleared;
}

#endif
