/* panel_rows.c -- packing, where lines are neighbours in memory and words of all lines are to be: rows of
 * the operand, cut into panels.
 *
 *     operand    row 0   | panel 0 | panel 1 | panel 2 | ..        a few rows of all panels, then the
 *                row 1   |         |         |         |           next rows: a cache line of the
 *                ..                                                operand is read once, whole
 *
 * Panels of 12 lines are written four rows at a time, as three vectors: a row of 48 bytes alone would be
 * stored across cache lines every other time. */
#include "device/cpu/simd/gemm/panel.h"

/* Of rows that are read soon: these many behind those at hand. */
enum { ROWS = 4, SOON_ROWS = 16, TOGETHER = 6 };

/* Rows of words, `step` bytes apart. */
typedef struct {
    const char *at;
    int64_t step, second; /* bytes: to the next row; to the second term of a word */
    int64_t panels, lines, line_bytes;
    uint32_t *to;
    int64_t panel; /* words from one panel to the next */
} Rows;

/* The first n of W neighbours of a row of words. */
typedef VU LoadRow(const char *at, int64_t second, int n);

static inline VH load_halves(const char *at, int n)
{
    VH v = {0};
#if defined(__AVX512F__)
    if (n < W) return (VH)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), at);
#endif
    memcpy(&v, at, (size_t)n * sizeof(uint16_t));
    return v;
}

static inline VU row_f32(const char *at, int64_t second, int n)
{
    (void)second;
    return (VU)v_load_to((const float *)(const void *)at, n);
}

static inline VU row_widen(const char *at, int64_t second, int n)
{
    (void)second;
    return __builtin_convertvector(load_halves(at, n), VU) << 16;
}

#if defined(__AVX512F__)
static inline VI vi_lanes(void)
{
    return (VI){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
#endif

static inline VU row_pairs(const char *at, int64_t second, int n)
{
    const VH low = load_halves(at, n), high = load_halves(at + second, n);
#if defined(__AVX512F__)
    /* As 16 bits of one and 16 of the other in turn; the others' count from 32 on. */
    const __m512i turns = (__m512i)(vi_lanes() | (vi_lanes() + 32) << 16);
    return (VU)_mm512_permutex2var_epi16(_mm512_castsi256_si512((__m256i)low), turns,
                                         _mm512_castsi256_si512((__m256i)high));
#else
    return __builtin_convertvector(low, VU) | __builtin_convertvector(high, VU) << 16;
#endif
}

static inline void put(uint32_t *to, VU v) { memcpy(to, &v, sizeof v); }

#if defined(__AVX512F__)
enum { TWELVE = 12 };

/* Four rows of 12 words: the first 12 lanes of each, one behind the other. */
static inline __attribute__((always_inline)) void put_twelves(const VU row[ROWS], uint32_t *to)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19);
    const __m512i half =
        _mm512_setr_epi32(4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23);
    const __m512i last =
        _mm512_setr_epi32(8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27);
    put(to, (VU)_mm512_permutex2var_epi32((__m512i)row[0], first, (__m512i)row[1]));
    put(to + W, (VU)_mm512_permutex2var_epi32((__m512i)row[1], half, (__m512i)row[2]));
    put(to + 2 * W, (VU)_mm512_permutex2var_epi32((__m512i)row[2], last, (__m512i)row[3]));
}
#else
enum { TWELVE = 0 }; /* no unit has panels of it */

static inline void put_twelves(const VU row[ROWS], uint32_t *to) { (void)row, (void)to; }
#endif

/* ROWS of a panel. */
static inline __attribute__((always_inline)) void put_rows(LoadRow *load, const Rows *r,
                                                           const char *at, uint32_t *to)
{
    VU row[ROWS];
    if (r->lines == TWELVE) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) row[i] = load(at + i * r->step, r->second, TWELVE);
        put_twelves(row, to);
        return;
    }
    for (int64_t line = 0; line < r->lines; line += W) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
            const char *const from = at + i * r->step + line * r->line_bytes;
            put(to + i * r->lines + line, load(from, r->second, W));
        }
    }
}

static void prefetch_next_rows(const Rows *r)
{
    const int64_t bytes = r->panels * r->lines * r->line_bytes;
    for (int i = SOON_ROWS; i < SOON_ROWS + ROWS; i++)
        for (int64_t byte = 0; byte < bytes; byte += 64) {
            __builtin_prefetch(r->at + i * r->step + byte, 0, 3);
            if (r->second) __builtin_prefetch(r->at + i * r->step + r->second + byte, 0, 3);
        }
}

static inline __attribute__((always_inline)) void put_all(LoadRow *load, Rows r, int64_t words)
{
    const int64_t wide = r.lines * r.line_bytes;
    for (int64_t w = 0; w < words; w += ROWS, r.at += ROWS * r.step, r.to += ROWS * r.lines) {
        prefetch_next_rows(&r);
        for (int64_t i = 0; i < r.panels; i++)
            put_rows(load, &r, r.at + i * wide, r.to + i * r.panel);
    }
}

int64_t panel_rows(const Lines *x, PanelShape shape, PanelPart part, int64_t panels, uint32_t *to)
{
    const int64_t per = shape.type == BF16 ? 2 : 1, size = (int64_t)dtype_bytes(x->dtype);
    const int64_t words = least(part.words, x->terms / per - part.word) / ROWS * ROWS;
    const bool fits = shape.lines == TWELVE || shape.lines % W == 0;
    if (x->line != 1 || x->term == 1 || shape.group != 1 || !fits || words <= 0) return 0;
    const int64_t first = part.line * x->line + part.word * per * x->term;
    Rows r = {.at = x->at + first * size,
              .step = per * x->term * size,
              .second = (per - 1) * x->term * size,
              .panels = panels,
              .lines = shape.lines,
              .line_bytes = size,
              .to = to,
              .panel = part.words * shape.lines};
    for (int64_t i = 0; i < panels; i += TOGETHER, r.to += TOGETHER * r.panel) {
        r.panels = least(TOGETHER, panels - i);
        if (per == 2)
            put_all(row_pairs, r, words);
        else if (x->dtype == BF16)
            put_all(row_widen, r, words);
        else
            put_all(row_f32, r, words);
        r.at += TOGETHER * r.lines * size;
    }
    return words;
}
