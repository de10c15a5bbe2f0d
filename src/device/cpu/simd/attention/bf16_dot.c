/* bf16_dot.c -- products of tiles of bf16, two terms at a time: AVX512-BF16.
 *
 *     s [other, owner]    = rows [other, c / 2]         turned [c / 2, owner]
 *     sum [owner, c]     += s' [owner, other / 2]       pairs [other / 2, c]      gather
 *     sum [other, c]     += s [other, owner / 2]        pairs [owner / 2, c]      spread
 *
 * A word of a row is spread over the lanes, and each lane adds two products to its sum of f32. Pairs
 * are even and odd tokens of a block, so both ways of a sum are one chain of the same additions.
 * Weights become words where they are made, in registers: attention_words.h. */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/bf16_dot.h"

/* Element (i, j) is at[i * row + j * column]. */
typedef struct {
    const uint32_t *at;
    int64_t row, column;
} WordMatrix;

/* sum += a b over k > 0 words. A loop that may do nothing has GCC keep the sums in memory beside. */
ALWAYS_INLINE DOT_TARGET static void words_sum(int64_t k, WordMatrix a, const uint32_t *b,
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

/* sum += a b, where rows of b and of the sum are as long: SMALL_MR x SMALL_NR of it. */
ALWAYS_INLINE DOT_TARGET static void words_add(int64_t k, WordMatrix a, const uint32_t *b,
                                               int64_t step, float *c)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) {
        sum[i][0] = v_load(c + i * step);
        sum[i][1] = v_load(c + i * step + W);
    }
    words_sum(k, a, b, step, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * step, sum[i][0]);
        v_store(c + i * step + W, sum[i][1]);
    }
}

/* Scores, of 2 W lanes or of W. */
ALWAYS_INLINE DOT_TARGET static void words_set(int64_t k, WordMatrix a, const uint32_t *b,
                                               float factor, float *c)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) sum[i][0] = sum[i][1] = v_set(0);
    words_sum(k, a, b, SPAN, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * SPAN, factor * sum[i][0]);
        v_store(c + i * SPAN + W, factor * sum[i][1]);
    }
}

ALWAYS_INLINE DOT_TARGET static void words_set_half(int64_t k, WordMatrix a, const uint32_t *b,
                                                    float factor, float *c)
{
    V sum[SMALL_MR];
    for (int i = 0; i < SMALL_MR; i++) sum[i] = v_set(0);
    do {
        for (int i = 0; i < SMALL_MR; i++) sum[i] = dot(sum[i], a.at[i * a.row], b);
        a.at += a.column;
        b += SPAN;
    } while (--k > 0);
    for (int i = 0; i < SMALL_MR; i++) v_store(c + i * SPAN, factor * sum[i]);
}

/* The bodies of score, gather and spread: compiled for the usual width of heads, and for any. */
ALWAYS_INLINE DOT_TARGET static void score_by(Way way, const Panel *rows, const Turned *turned,
                                              const Bounds *b, Scores *s)
{
    const int64_t words = padded(way.channels) / 2, used = blocks_of(way.channels, 2);
    for (int64_t j = 0; j < SPAN; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const WordMatrix a = {rows->rows + g * SMALL_MR * words, words, 1};
            const Halves seen = halves_seen(b, g, j);
            ahead_some(way.ahead);
            const int64_t at = seen == UPPER_HALF ? j + W : j;
            float *to = &s->at[g * SMALL_MR][at];
            if (seen == BOTH_HALVES)
                words_set(used, a, turned->place.words + at, turned->factor, to);
            else if (seen != NO_HALF)
                words_set_half(used, a, turned->place.words + at, turned->factor, to);
        }
}

ALWAYS_INLINE DOT_TARGET static void sum_by(Way way, WordMatrix weights, const Panel *rows,
                                            const Bounds *b, float *sum)
{
    const int64_t step = padded(way.channels);
    for (int64_t j = 0; j < step; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const int64_t from = b->from[g] / 2, n = b->to[g] / 2 - from;
            ahead_some(way.ahead);
            if (n == 0) continue;
            WordMatrix a = weights;
            a.at += g * SMALL_MR * a.row + from * a.column;
            words_add(n, a, rows->pairs + from * step + j, step, sum + g * SMALL_MR * step + j);
        }
}

DOT_TARGET void words_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b,
                            Scores *s)
{
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        score_by(usual, rows, turned, b, s);
    else
        score_by(way, rows, turned, b, s);
}

DOT_TARGET void words_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b,
                             float *sum)
{
    const WordMatrix weights = {s->pairs[0], 1, SPAN};
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        sum_by(usual, weights, rows, b, sum);
    else
        sum_by(way, weights, rows, b, sum);
}

DOT_TARGET void words_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b,
                             float *sum)
{
    const WordMatrix weights = {s->halves[0], SPAN / 2, 1};
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        sum_by(usual, weights, rows, b, sum);
    else
        sum_by(way, weights, rows, b, sum);
}

DOT_TARGET V words_weigh(Scores *s, int lane, Hull hull, V base)
{
    V sum[2] = {{0}};
    for (int j = hull.from; j < hull.to; j += 2) {
        const V even = v_exp2(v_load(&s->at[j][lane]) - base);
        const V odd = v_exp2(v_load(&s->at[j + 1][lane]) - base);
        store_pairs(&s->pairs[j / 2][lane], even, odd);
        sum[0] += even;
        sum[1] += odd;
    }
    return sum[0] + sum[1];
}

/* 2 W pairs of two queries: p [query][lanes / W], then ds. */
DOT_TARGET static inline void grade_square(const Stats *st, int i, V s[2][2], V dp[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++)
            grade((Way){.words = true, .factor = st->factor}, v_set(st->lse[i + r]),
                  v_set(st->delta[i + r]), &s[r][c], &dp[r][c]);
}

/* By the first range alone: one that two ranges make together is hidden by masks, which is right too. */
static inline bool square_is_seen(const Ranges *r, int i, int64_t key)
{
    return most(r->lo[0][i], r->lo[0][i + 1]) <= key &&
           least(r->hi[0][i], r->hi[0][i + 1]) >= key + 2 * W;
}

static inline void hide_square(const Ranges *ranges, int i, int64_t key, V s[2][2], V dp[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) {
            const VI seen = keys_seen_by(ranges, i + r, keys_from(key + c * W));
            s[r][c] = v_pick(seen, s[r][c], v_set(0));
            dp[r][c] = v_pick(seen, dp[r][c], v_set(0));
        }
}

/* Two rows of 2 W pairs. */
static inline void square_load(const float *s, V x[2][2])
{
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) x[r][c] = v_load(s + r * SPAN + c * W);
}

DOT_TARGET void words_grade(const Stats *st, Block keys, const Bounds *queries, const Graded *g)
{
    const bool all = queries->sight == SEEN_BY_ALL;
    for (int i = g->from; i < g->to; i += 2) {
        const int from = queries->from[i / SMALL_MR], to = queries->to[i / SMALL_MR];
        for (int j = 0; j < SPAN; j += 2 * W) {
            V p[2][2] = {{{0}}}, ds[2][2] = {{{0}}};
            if (from < j + 2 * W && to > j) {
                square_load(&g->s->at[i][j], p);
                square_load(&g->dp->at[i][j], ds);
                grade_square(st, i, p, ds);
                if (!all && !square_is_seen(&st->ranges, i, keys.at + j))
                    hide_square(&st->ranges, i, keys.at + j, p, ds);
            }
            for (int c = 0; c < 2; c++) {
                store_pairs(&g->s->pairs[i / 2][j + c * W], p[0][c], p[1][c]);
                store_pairs(&g->dp->pairs[i / 2][j + c * W], ds[0][c], ds[1][c]);
                store_halves(&g->dp->halves[i + c][j / 2], ds[c][0], ds[c][1]);
            }
        }
    }
}

DOT_TARGET void words_round(Scores *s)
{
    for (int64_t p = 0; p < SPAN / 2; p++)
        for (int64_t i = 0; i < SPAN; i += W)
            store_pairs(&s->pairs[p][i], v_load(&s->at[2 * p][i]), v_load(&s->at[2 * p + 1][i]));
}

/* A row of any stride or width. */
DOT_TARGET static void words_gather_row(RowRef row, int64_t channels, int64_t words, uint32_t *to)
{
    float wide[CHANNELS] = {0};
    load_piece(row, 0, channels, wide);
    for (int64_t c = 0; c < 2 * words; c += 2 * W)
        store_halves(to + c / 2, v_load(wide + c), v_load(wide + c + W));
}

void words_load(const Tensor *x, Block block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], words = padded(channels) / 2;
    for (int64_t i = 0; i < block.n; i++) {
        const RowRef row = head_row(x, block.at + i, head);
        uint32_t *to = p->rows + i * words;
        if (row.stride == 1 && channels == 2 * words)
            for (int64_t w = 0; w < words; w += W)
                memcpy(to + w, (const uint32_t *)(void *)row.at + w, W * sizeof *to);
        else
            words_gather_row(row, channels, words, to);
    }
    memset(p->rows + block.n * words, 0, (size_t)((SPAN - block.n) * words) * sizeof *p->rows);
}

void words_pair(int64_t channels, Panel *p)
{
    const int64_t words = padded(channels) / 2;
    for (int64_t i = 0; i < SPAN; i += 2)
        for (int64_t w = 0; w < words; w += W)
            pair_words(p->rows + i * words + w, words, p->pairs + i * words + 2 * w);
}
