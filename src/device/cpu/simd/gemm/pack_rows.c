/* pack_rows.c -- packing without transposition: mn is contiguous in memory and in the panels, so
 * rows of the operand are split into panels.
 *
 *     operand    row 0   | panel 0 | panel 1 | panel 2 | ..     a few rows of several panels, then
 *                row 1   |         |         |         |        the next rows: a cache line of the
 *                ..                                             operand is read once, whole
 *
 * Panels of width 12 are written four rows at a time, as three vectors: a single row of 48 bytes
 * would cross a cache line every other time. */
#include "device/cpu/simd/gemm/pack.h"

/* Rows per step; rows between a row and its prefetch; panels that advance together along k. */
enum { ROWS = 4, PREFETCH_ROWS = 16, PANELS = 6 };

/* Rows of dwords, each `step` bytes after the one before. */
typedef struct {
    const char *at;
    int64_t step, second; /* bytes: to the next row; to the second element of a VNNI pair, or 0 */
    int64_t panels, width, element_bytes;
    uint32_t *to;
    int64_t panel_dwords; /* from one panel to the next */
} PackRows;

/* The first n of W neighbours of a row of dwords. */
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

/* VNNI pairs: row k in the low halves of the dwords, row k + 1 in the high halves. */
static inline VU row_pairs(const char *at, int64_t second, int n)
{
    const VH low = load_halves(at, n), high = load_halves(at + second, n);
#if defined(__AVX512F__)
    /* Interleaves 16-bit elements; those of the second operand have indices from 32 on. */
    const __m512i interleave = (__m512i)(vi_lanes() | (vi_lanes() + 32) << 16);
    return (VU)_mm512_permutex2var_epi16(_mm512_castsi256_si512((__m256i)low), interleave,
                                         _mm512_castsi256_si512((__m256i)high));
#else
    return __builtin_convertvector(low, VU) | __builtin_convertvector(high, VU) << 16;
#endif
}

static inline void put(uint32_t *to, VU v) { memcpy(to, &v, sizeof v); }

#if defined(__AVX512F__)
enum { TWELVE = 12 };

/* Stores the first 12 lanes of four rows, one row after the other. */
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
enum { TWELVE = 0 }; /* no micro-kernel has panels of this width */

static inline void put_twelves(const VU row[ROWS], uint32_t *to) { (void)row, (void)to; }
#endif

/* Packs ROWS rows of one panel. */
static inline __attribute__((always_inline)) void put_rows(LoadRow *load, const PackRows *r,
                                                           const char *at, uint32_t *to)
{
    VU row[ROWS];
    if (r->width == TWELVE) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) row[i] = load(at + i * r->step, r->second, TWELVE);
        put_twelves(row, to);
        return;
    }
    for (int64_t mn = 0; mn < r->width; mn += W) {
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) {
            const char *const from = at + i * r->step + mn * r->element_bytes;
            put(to + i * r->width + mn, load(from, r->second, W));
        }
    }
}

static void prefetch_next_rows(const PackRows *r)
{
    const int64_t bytes = r->panels * r->width * r->element_bytes;
    for (int i = PREFETCH_ROWS; i < PREFETCH_ROWS + ROWS; i++)
        for (int64_t byte = 0; byte < bytes; byte += 64) {
            __builtin_prefetch(r->at + i * r->step + byte, 0, 3);
            if (r->second) __builtin_prefetch(r->at + i * r->step + r->second + byte, 0, 3);
        }
}

static inline __attribute__((always_inline)) void put_all(LoadRow *load, PackRows r, int64_t dwords)
{
    const int64_t panel_bytes = r.width * r.element_bytes;
    for (int64_t d = 0; d < dwords; d += ROWS, r.at += ROWS * r.step, r.to += ROWS * r.width) {
        prefetch_next_rows(&r);
        for (int64_t i = 0; i < r.panels; i++)
            put_rows(load, &r, r.at + i * panel_bytes, r.to + i * r.panel_dwords);
    }
}

int64_t panels_pack_rows(const PackOperand *x, PanelShape shape, PanelPart part, int64_t panels,
                         uint32_t *to)
{
    const int64_t per = shape.type == BF16 ? 2 : 1, size = (int64_t)dtype_bytes(x->dtype);
    const int64_t dwords = min_i64(part.dwords, x->k / per - part.dword) / ROWS * ROWS;
    const bool fits = shape.width == TWELVE || shape.width % W == 0;
    if (x->mn_stride != 1 || x->k_stride == 1 || shape.k_group != 1 || !fits || dwords <= 0)
        return 0;
    const int64_t first = part.mn * x->mn_stride + part.dword * per * x->k_stride;
    PackRows r = {.at = x->at + first * size,
                  .step = per * x->k_stride * size,
                  .second = (per - 1) * x->k_stride * size,
                  .panels = panels,
                  .width = shape.width,
                  .element_bytes = size,
                  .to = to,
                  .panel_dwords = part.dwords * shape.width};
    for (int64_t i = 0; i < panels; i += PANELS, r.to += PANELS * r.panel_dwords) {
        r.panels = min_i64(PANELS, panels - i);
        if (per == 2)
            put_all(row_pairs, r, dwords);
        else if (x->dtype == BF16)
            put_all(row_widen, r, dwords);
        else
            put_all(row_f32, r, dwords);
        r.at += PANELS * r.width * size;
    }
    return dwords;
}
