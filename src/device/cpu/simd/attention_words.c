/* attention_words.c -- products of tiles of bf16, two terms at a time: AVX512-BF16.
 *
 *     s [other, owner]    = rows [other, c / 2]         turned [c / 2, owner]
 *     sum [owner, c]     += s' [owner, other / 2]       pairs [other / 2, c]      gather
 *     sum [other, c]     += s [other, owner / 2]        pairs [owner / 2, c]      spread
 *
 * A word of a row is spread over the lanes, and each lane adds two products to its sum of f32. Pairs
 * are even and odd tokens of a block, so both ways of a sum are one chain of the same additions.
 * Other instruction sets have the loops too, in plain arithmetic, but no CPU chooses words there. */
#include "device/cpu/simd/attention.h"

typedef uint32_t Halves[SPAN * SPAN / 2]; /* scores as words */

/* Element (i, j) is at[i * row + j * column]. */
typedef struct {
    const uint32_t *at;
    int64_t row, column;
} WordMatrix;

#if defined(__AVX512F__)

#define DOT_TARGET __attribute__((target("avx512bf16")))

DOT_TARGET static inline V dot(V sum, uint32_t x, const uint32_t *b)
{
    return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x),
                               (__m512bh)_mm512_loadu_si512(b));
}

/* 2 W numbers one after another. */
DOT_TARGET static inline void store_halves(uint32_t *to, V first, V second)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

/* W words: a number of each. */
DOT_TARGET static inline void store_pairs(uint32_t *to, V even, V odd)
{
    const __m512i x = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1));
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

#else

#define DOT_TARGET

static inline V dot(V sum, uint32_t x, const uint32_t *b)
{
    VU word;
    memcpy(&word, b, sizeof word);
    const VU both = x - (VU){0};
    return sum + (V)(both & 0xffff0000u) * (V)(word & 0xffff0000u) +
           (V)(both << 16) * (V)(word << 16);
}

static inline void store_halves(uint32_t *to, V first, V second)
{
    uint16_t half[2 * W];
    v_store_bf16(half, first);
    v_store_bf16(half + W, second);
    memcpy(to, half, sizeof half);
}

static inline void store_pairs(uint32_t *to, V even, V odd)
{
    uint16_t low[W], high[W];
    v_store_bf16(low, even);
    v_store_bf16(high, odd);
    for (int i = 0; i < W; i++) to[i] = (uint32_t)high[i] << 16 | low[i];
}

#endif

/* c = factor * a b: MICRO_ROWS x MICRO_COLUMNS of it. */
DOT_TARGET static inline void words_set(int64_t k, WordMatrix a, const uint32_t *b, float factor,
                                        float *c)
{
    V sum[MICRO_ROWS][2];
    for (int i = 0; i < MICRO_ROWS; i++) sum[i][0] = sum[i][1] = v_set(0);
    for (int64_t p = 0; p < k; p++, b += SPAN)
        for (int i = 0; i < MICRO_ROWS; i++) {
            sum[i][0] = dot(sum[i][0], a.at[i * a.row + p], b);
            sum[i][1] = dot(sum[i][1], a.at[i * a.row + p], b + W);
        }
    for (int i = 0; i < MICRO_ROWS; i++) {
        v_store(c + i * SPAN, factor * sum[i][0]);
        v_store(c + i * SPAN + W, factor * sum[i][1]);
    }
}

/* c += a b, where rows of b and c are as long. */
DOT_TARGET static inline void words_add(int64_t k, WordMatrix a, const uint32_t *b, int64_t step,
                                        float *c)
{
    V sum[MICRO_ROWS][2];
    for (int i = 0; i < MICRO_ROWS; i++) {
        sum[i][0] = v_load(c + i * step);
        sum[i][1] = v_load(c + i * step + W);
    }
    for (int64_t p = 0; p < k; p++, b += step)
        for (int i = 0; i < MICRO_ROWS; i++) {
            sum[i][0] = dot(sum[i][0], a.at[i * a.row + p * a.column], b);
            sum[i][1] = dot(sum[i][1], a.at[i * a.row + p * a.column], b + W);
        }
    for (int i = 0; i < MICRO_ROWS; i++) {
        v_store(c + i * step, sum[i][0]);
        v_store(c + i * step + W, sum[i][1]);
    }
}

DOT_TARGET void words_score(int64_t channels, const Panel *rows, const Turned *turned,
                            const Bounds *b, Scores s)
{
    const int64_t words = padded(channels) / 2, used = blocks_of(channels, 2);
    for (int64_t j = 0; j < SPAN; j += MICRO_COLUMNS)
        for (int g = 0; g < GROUPS; g++) {
            if (b->from[g] >= j + MICRO_COLUMNS || b->to[g] <= j) continue;
            const WordMatrix a = {rows->rows + g * MICRO_ROWS * words, words, 1};
            words_set(used, a, turned->words + j, turned->factor, &s[g * MICRO_ROWS][j]);
        }
}

DOT_TARGET void words_gather(int64_t channels, Scores s, const Panel *rows, const Bounds *b,
                             float *sum)
{
    const int64_t step = padded(channels);
    Halves weight; /* [other / 2][owner] */
    for (int64_t p = 0; p < SPAN / 2; p++)
        for (int64_t i = 0; i < SPAN; i += W)
            store_pairs(weight + p * SPAN + i, v_load(&s[2 * p][i]), v_load(&s[2 * p + 1][i]));
    for (int64_t j = 0; j < step; j += MICRO_COLUMNS)
        for (int g = 0; g < GROUPS; g++) {
            const int64_t from = b->from[g] / 2, n = b->to[g] / 2 - from;
            const WordMatrix a = {weight + from * SPAN + g * MICRO_ROWS, 1, SPAN};
            words_add(n, a, rows->pairs + from * step + j, step, sum + g * MICRO_ROWS * step + j);
        }
}

DOT_TARGET void words_spread(int64_t channels, Scores s, const Panel *rows, const Bounds *b,
                             float *sum)
{
    const int64_t step = padded(channels);
    Halves weight; /* [other][owner / 2] */
    for (int64_t i = 0; i < SPAN; i++)
        for (int64_t j = 0; j < SPAN; j += 2 * W)
            store_halves(weight + (i * SPAN + j) / 2, v_load(&s[i][j]), v_load(&s[i][j + W]));
    for (int64_t j = 0; j < step; j += MICRO_COLUMNS)
        for (int g = 0; g < GROUPS; g++) {
            const int64_t from = b->from[g] / 2, n = b->to[g] / 2 - from;
            const WordMatrix a = {weight + g * MICRO_ROWS * SPAN / 2 + from, SPAN / 2, 1};
            words_add(n, a, rows->pairs + from * step + j, step, sum + g * MICRO_ROWS * step + j);
        }
}

/* Words of two rows to pairs of their elements: (a0 a1), (b0 b1) to (a0 b0), (a1 b1). */
static void pair_rows(const uint32_t *a, const uint32_t *b, int64_t words, uint32_t *to)
{
    for (int64_t i = 0; i < words; i++) {
        to[2 * i] = (a[i] & 0xffffu) | b[i] << 16;
        to[2 * i + 1] = a[i] >> 16 | (b[i] & 0xffff0000u);
    }
}

void words_load(const Tensor *x, Block block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], words = padded(channels) / 2;
    float wide[CHANNELS] = {0};
    for (int64_t i = 0; i < block.n; i++) {
        const Row row = head_row(x, block.at + i, head);
        uint32_t *to = p->rows + i * words;
        if (row.stride == 1 && channels == 2 * words) {
            const uint32_t *from = (const uint32_t *)(void *)row.at;
            for (int64_t w = 0; w < words; w += W) memcpy(to + w, from + w, W * sizeof *to);
            continue;
        }
        load_piece(row, 0, channels, wide);
        for (int64_t c = 0; c < 2 * words; c += 2 * W)
            store_halves(to + c / 2, v_load(wide + c), v_load(wide + c + W));
    }
    memset(p->rows + block.n * words, 0, (size_t)((SPAN - block.n) * words) * sizeof *p->rows);
    for (int64_t i = 0; i < SPAN; i += 2)
        pair_rows(p->rows + i * words, p->rows + (i + 1) * words, words, p->pairs + i * words);
}

void words_row(const Panel *p, int64_t token, int64_t channels, float *row)
{
    const uint16_t *from = (const uint16_t *)(p->rows + token * padded(channels) / 2);
    for (int64_t c = 0; c < channels; c += W) v_store(row + c, v_load_bf16(from + c));
}
