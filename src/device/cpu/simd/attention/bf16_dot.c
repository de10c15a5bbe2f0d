/* bf16_dot.c -- the bf16 path: the GEMMs of a tile by AVX512-BF16, two terms per instruction.
 *
 *     s [other, owner]    = rows [other, c / 2]         transposed [c / 2, owner]
 *     sum [owner, c]     += s' [owner, other / 2]       token_pairs [other / 2, c]
 *     sum [other, c]     += s [other, owner / 2]        token_pairs [owner / 2, c]
 *
 * A pair of a row is broadcast to all lanes, and each lane adds two products to its f32 sum. Pairs
 * are an even and the next odd token of a block, so both accumulations add the same terms in the
 * same order. Weights are rounded and paired in registers, as they are computed: bf16_dot.h. */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/bf16_dot.h"

/* Element (i, j) is at[i * row + j * column]. */
typedef struct {
    const uint32_t *at;
    int64_t row, column;
} PairMatrix;

/* sum += a b over k > 0 dwords; the loop runs at least once for the reason in small_gemm_sum. */
ALWAYS_INLINE DOT_TARGET static void dot_gemm_sum(int64_t k, PairMatrix a, const uint32_t *b,
                                                  int64_t step, V sum[SMALL_MR][2])
{
    do {
        for (int i = 0; i < SMALL_MR; i++) {
            sum[i][0] = dot(sum[i][0], a.at[i * a.row], b);
            sum[i][1] = dot(sum[i][1], a.at[i * a.row], b + W);
        }
        a.at += a.column;
        b += step;
    } while (--k > 0);
}

/* c += a b: SMALL_MR x SMALL_NR of it. */
ALWAYS_INLINE DOT_TARGET static void dot_gemm_add(int64_t k, PairMatrix a, const uint32_t *b,
                                                  int64_t b_row, float *c, int64_t c_row)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) {
        sum[i][0] = v_load(c + i * c_row);
        sum[i][1] = v_load(c + i * c_row + W);
    }
    dot_gemm_sum(k, a, b, b_row, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * c_row, sum[i][0]);
        v_store(c + i * c_row + W, sum[i][1]);
    }
}

/* c = factor * a b: SMALL_MR x SMALL_NR of it. */
ALWAYS_INLINE DOT_TARGET static void dot_gemm_set(int64_t k, PairMatrix a, const uint32_t *b,
                                                  int64_t b_row, float factor, float *c,
                                                  int64_t c_row)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) sum[i][0] = sum[i][1] = v_set(0);
    dot_gemm_sum(k, a, b, b_row, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * c_row, factor * sum[i][0]);
        v_store(c + i * c_row + W, factor * sum[i][1]);
    }
}

/* c = factor * a b, for W columns. */
ALWAYS_INLINE DOT_TARGET static void dot_gemm_set_half(int64_t k, PairMatrix a, const uint32_t *b,
                                                       int64_t b_row, float factor, float *c,
                                                       int64_t c_row)
{
    V sum[SMALL_MR];
    for (int i = 0; i < SMALL_MR; i++) sum[i] = v_set(0);
    do {
        for (int i = 0; i < SMALL_MR; i++) sum[i] = dot(sum[i], a.at[i * a.row], b);
        a.at += a.column;
        b += b_row;
    } while (--k > 0);
    for (int i = 0; i < SMALL_MR; i++) v_store(c + i * c_row, factor * sum[i]);
}

#define GEMM_TERMS 2
#define GEMM_DWORD uint32_t
#define GEMM_MATRIX PairMatrix
#define GEMM_TARGET DOT_TARGET
#define GEMM_SET dot_gemm_set
#define GEMM_SET_HALF dot_gemm_set_half
#define GEMM_ADD dot_gemm_add
#include "device/cpu/simd/attention/tile_gemm_body.h"

DOT_TARGET void bf16_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                           const Bounds *b, Scores *s)
{
    tile_score(path, rows->dwords, transposed->buffer.dwords, transposed->factor, b, s);
}

/* The weights [owner][other / 2] are other_pairs [other / 2][owner] read by columns. */
DOT_TARGET void bf16_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows,
                                      const Bounds *b, float *sum)
{
    tile_accumulate(path, (PairMatrix){s->other_pairs[0], 1, BLOCK}, rows->token_pairs, b, sum);
}

DOT_TARGET void bf16_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows,
                                      const Bounds *b, float *sum)
{
    tile_accumulate(path, (PairMatrix){s->owner_pairs[0], BLOCK / 2, 1}, rows->token_pairs, b, sum);
}

DOT_TARGET V bf16_weights(Scores *s, int lane, Hull hull, V base)
{
    V sum[2] = {{0}};
    for (int j = hull.from; j < hull.to; j += 2) {
        const V even = v_exp2(v_load(&s->f32[j][lane]) - base);
        const V odd = v_exp2(v_load(&s->f32[j + 1][lane]) - base);
        store_interleaved_pairs(&s->other_pairs[j / 2][lane], even, odd);
        sum[0] += even;
        sum[1] += odd;
    }
    return sum[0] + sum[1];
}

/* p and ds of a quad: two queries [r] by 2 vectors of keys [c]. */
DOT_TARGET static inline void quad_grad(const SoftmaxStats *st, int i, V s[2][2], V dp[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++)
            softmax_grad((AttentionPath){.bf16 = true, .factor = st->factor}, v_set(st->lse[i + r]),
                         v_set(st->delta[i + r]), &s[r][c], &dp[r][c]);
}

/* True if both queries attend to all 2 W keys by their first range. A quad that only both ranges
 * together cover returns false; masking it is correct too. */
static inline bool quad_is_visible(const Ranges *r, int i, int64_t key)
{
    return max_i64(r->lo[0][i], r->lo[0][i + 1]) <= key &&
           min_i64(r->hi[0][i], r->hi[0][i + 1]) >= key + 2 * W;
}

static inline void quad_mask(const Ranges *ranges, int i, int64_t key, V s[2][2], V dp[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) {
            const VI visible = keys_attended(ranges, i + r, keys_from(key + c * W));
            s[r][c] = v_pick(visible, s[r][c], v_set(0));
            dp[r][c] = v_pick(visible, dp[r][c], v_set(0));
        }
}

/* Loads a quad of a tile: two rows of 2 W pairs. */
static inline void quad_load(const float *s, V x[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) x[r][c] = v_load(s + r * BLOCK + c * W);
}

DOT_TARGET void bf16_softmax_grad(const SoftmaxStats *st, TokenBlock keys, const Bounds *queries,
                                  const GradRows *g)
{
    const bool all = queries->coverage == FULL_TILE;
    for (int i = g->from; i < g->to; i += 2) {
        const int from = queries->from[i / SMALL_MR], to = queries->to[i / SMALL_MR];
        for (int j = 0; j < BLOCK; j += 2 * W) {
            V p[2][2] = {{{0}}}, ds[2][2] = {{{0}}};
            if (from < j + 2 * W && to > j) {
                quad_load(&g->s->f32[i][j], p);
                quad_load(&g->dp->f32[i][j], ds);
                quad_grad(st, i, p, ds);
                if (!all && !quad_is_visible(&st->ranges, i, keys.at + j))
                    quad_mask(&st->ranges, i, keys.at + j, p, ds);
            }
            /* other_pairs overlay row i / 2 of f32, whose columns have been read. */
            for (int c = 0; c < 2; c++) {
                store_interleaved_pairs(&g->s->other_pairs[i / 2][j + c * W], p[0][c], p[1][c]);
                store_interleaved_pairs(&g->dp->other_pairs[i / 2][j + c * W], ds[0][c], ds[1][c]);
                store_adjacent_pairs(&g->dp->owner_pairs[i + c][j / 2], ds[c][0], ds[c][1]);
            }
        }
    }
}

DOT_TARGET void bf16_round(Scores *s)
{
    for (int64_t p = 0; p < BLOCK / 2; p++)
        for (int64_t i = 0; i < BLOCK; i += W)
            store_interleaved_pairs(&s->other_pairs[p][i], v_load(&s->f32[2 * p][i]),
                                    v_load(&s->f32[2 * p + 1][i]));
}

/* Converts a row of any stride, or one that needs padding. */
DOT_TARGET static void bf16_load_row(RowRef row, int64_t channels, int64_t dwords, uint32_t *to)
{
    float wide[MAX_CHANNELS] = {0};
    load_piece(row, 0, channels, wide);
    for (int64_t c = 0; c < 2 * dwords; c += 2 * W)
        store_adjacent_pairs(to + c / 2, v_load(wide + c), v_load(wide + c + W));
}

void bf16_load(const Tensor *x, TokenBlock block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], dwords = padded(channels) / 2;
    for (int64_t i = 0; i < block.n; i++) {
        const RowRef row = head_row(x, block.at + i, head);
        uint32_t *to = p->dwords + i * dwords;
        if (row.stride == 1 && channels == 2 * dwords)
            for (int64_t w = 0; w < dwords; w += W)
                memcpy(to + w, (const uint32_t *)(void *)row.at + w, W * sizeof *to);
        else
            bf16_load_row(row, channels, dwords, to);
    }
    memset(p->dwords + block.n * dwords, 0,
           (size_t)((BLOCK - block.n) * dwords) * sizeof *p->dwords);
}

void bf16_pair_tokens(int64_t channels, Panel *p)
{
    const int64_t dwords = padded(channels) / 2;
    for (int64_t i = 0; i < BLOCK; i += 2)
        for (int64_t w = 0; w < dwords; w += W)
            interleave_rows(p->dwords + i * dwords + w, dwords,
                            p->token_pairs + i * dwords + 2 * w);
}
