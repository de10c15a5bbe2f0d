/* panel.c -- packing: W lines of W words at a time, through registers.
 *
 * A block comes in line by line where a line's terms are neighbours in memory, or word by word where
 * its lines are; it leaves word by word (group 1) or line by line (group W). Where the two differ it
 * is turned on the way. Blocks at an edge, and operands with neighbours in neither direction, go
 * element by element. Words that stay words are mostly panel_rows.c's. */
#include "device/cpu/simd/gemm/panel.h"

typedef struct {
    VU v[W];
} Square;

/* How a block is read. */
typedef enum { TERMS_BF16, TERMS_WIDEN, TERMS_F32, LINES_BF16, LINES_WIDEN, LINES_F32 } Source;

static inline VU load_words(const void *p)
{
    VU v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline VU load_wide(const uint16_t *p) { return (VU)v_load_bf16(p); }

static inline VU widen(VH v) { return __builtin_convertvector(v, VU); }

/* The first n lanes, zeros after them; n may be more than W. */
static inline VH load_halves(const uint16_t *p, int64_t n)
{
    VH v = {0};
    if (n >= W)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* Rows and columns change places: halves of halves, each stage swaps what lies across. */
static inline __attribute__((always_inline)) void turn_square(Square *s)
{
#if defined(__AVX512F__)
    static const int32_t lane[W] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    VI own;
    memcpy(&own, lane, sizeof own);
#pragma GCC unroll 4
    for (int d = W / 2; d > 0; d /= 2) {
        const VI upper = (own & d) != 0; /* lanes taken from the second operand, at + W */
        const VI low = (~upper & own) | (upper & (own - d + W)), high = low + d;
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) {
            if (i & d) continue;
            const __m512i a = (__m512i)s->v[i], b = (__m512i)s->v[i + d];
            s->v[i] = (VU)_mm512_permutex2var_epi32(a, (__m512i)low, b);
            s->v[i + d] = (VU)_mm512_permutex2var_epi32(a, (__m512i)high, b);
        }
    }
#else
    uint32_t from[W][W], to[W][W];
    memcpy(from, s, sizeof from);
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++) to[j][i] = from[i][j];
    memcpy(s, to, sizeof to);
#endif
}

/* Where a block begins, and how many of its lines there are; the others are zero. */
typedef struct {
    const char *at;
    int64_t line, term, live;
} Corner;

/* Words that are packed of each panel before more of the first, where lines are neighbours in memory:
 * a row's part for all panels is then read while it is near. */
enum { RUN_WORDS = 64 };

/* An address on a line, and a wish for that W lines on, of the next square: one line after another is too
 * short for the CPU to see where it goes. */
static inline const void *beside(const char *at, int64_t line)
{
    __builtin_prefetch(at + W * line, 0, 2);
    return at;
}

/* An address on a row of words, and a wish for that of the next run. */
static inline const void *below(const char *at, int64_t word)
{
    __builtin_prefetch(at + RUN_WORDS * word, 0, 2);
    return at;
}

/* Vector i of a block: its i-th line, or its i-th word. */
static inline __attribute__((always_inline)) VU load_of(Source source, const Corner *c, int i)
{
    const int64_t line = 2 * c->line, term = 2 * c->term; /* bytes, of bf16 */
    if (source <= TERMS_F32 && i >= c->live) return (VU){0};
    switch (source) {
    case TERMS_BF16:
        return load_words(beside(c->at + i * line, line));
    case TERMS_WIDEN:
        return load_wide(beside(c->at + i * line, line));
    case TERMS_F32:
        return load_words(beside(c->at + 2 * i * line, 2 * line));
    case LINES_WIDEN:
        return widen(load_halves(below(c->at + i * term, term), c->live)) << 16;
    case LINES_F32:
        return (VU)v_load_to(below(c->at + 2 * i * term, 2 * term), c->live);
    default:
        return widen(load_halves(below(c->at + 2 * i * term, 2 * term), c->live)) |
               widen(load_halves(below(c->at + (2 * i + 1) * term, 2 * term), c->live)) << 16;
    }
}

#if defined(__AVX512F__)
/* Four lines of W words, turned: of each word the four go to to[word * step] on. Within quarters of 16 bytes
 * that takes half as long as a whole square in registers. */
static inline __attribute__((always_inline)) void turn_four(const VU line[4], int64_t step,
                                                            uint32_t *to)
{
    const __m512i a = (__m512i)line[0], b = (__m512i)line[1];
    const __m512i c = (__m512i)line[2], d = (__m512i)line[3];
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ab2 = _mm512_unpackhi_epi32(a, b), cd2 = _mm512_unpackhi_epi32(c, d);
    const __m512i word[4] = {_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd),
                             _mm512_unpacklo_epi64(ab2, cd2), _mm512_unpackhi_epi64(ab2, cd2)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        uint32_t *const at = to + i * step;
        _mm_storeu_si128((void *)at, _mm512_castsi512_si128(word[i]));
        _mm_storeu_si128((void *)(at + 4 * step), _mm512_extracti32x4_epi32(word[i], 1));
        _mm_storeu_si128((void *)(at + 8 * step), _mm512_extracti32x4_epi32(word[i], 2));
        _mm_storeu_si128((void *)(at + 12 * step), _mm512_extracti32x4_epi32(word[i], 3));
    }
}
#endif

/* A block whose words are all there: `lines` of it, at most W, are written. */
static inline __attribute__((always_inline)) void
pack_square(Source source, Corner corner, PanelShape shape, int lines, uint32_t *to)
{
#if defined(__AVX512F__)
    if (source <= TERMS_F32 && shape.group == 1 && lines % 4 == 0) {
        for (int i = 0; i < lines; i += 4) {
            const VU four[4] = {load_of(source, &corner, i), load_of(source, &corner, i + 1),
                                load_of(source, &corner, i + 2), load_of(source, &corner, i + 3)};
            turn_four(four, shape.lines, to + i);
        }
        return;
    }
#endif
    Square s;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) s.v[i] = load_of(source, &corner, i);
    if ((source <= TERMS_F32) == (shape.group == 1)) turn_square(&s);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        if (shape.group == 1)
            v_store_to((float *)(void *)(to + i * shape.lines), lines, (V)s.v[i]);
        else
            memcpy(to + i * W, &s.v[i], sizeof s.v[i]);
}

static int terms_of_word(PanelShape shape) { return shape.type == BF16 ? 2 : 1; }

static const char *element_of(const Lines *x, int64_t line, int64_t term)
{
    return x->at + (line * x->line + term * x->term) * (int64_t)dtype_bytes(x->dtype);
}

/* A block that is not whole, element by element; `words` of it are written. */
static void pack_edge(const Lines *x, PanelShape shape, PanelPart part, int lines, uint32_t *to)
{
    const int per = terms_of_word(shape);
    for (int i = 0; i < lines; i++)
        for (int64_t w = 0; w < part.words; w++) {
            uint32_t word = 0;
            for (int t = 0; t < per; t++) {
                const int64_t line = part.line + i, term = (part.word + w) * per + t;
                uint32_t bits = 0;
                if (line < x->lines && term < x->terms)
                    memcpy(&bits, element_of(x, line, term), dtype_bytes(x->dtype));
                if (x->dtype == BF16 && per == 1) bits <<= 16; /* widened */
                word |= bits << 16 * t;
            }
            to[shape.group == 1 ? w * shape.lines + i : i * W + w] = word;
        }
}

/* Along a group of lines: all words of the part. */
static inline __attribute__((always_inline)) void
pack_group(Source source, const Lines *x, PanelShape shape, PanelPart part, int lines, uint32_t *to)
{
    const int per = terms_of_word(shape);
    const int64_t whole = x->terms / per - part.word, left = x->lines - part.line;
    const int64_t live = most(0, source <= TERMS_F32 ? least(left, lines) : left);
    for (int64_t w = 0; w < part.words; w += W) {
        uint32_t *const at = to + w * shape.lines;
        const PanelPart here = {part.line, part.word + w, least(part.words - w, W)};
        const Corner corner = {element_of(x, here.line, here.word * per), x->line, x->term, live};
        if (here.words == W && w + W <= whole)
            pack_square(source, corner, shape, lines, at);
        else
            pack_edge(x, shape, here, lines, at);
    }
}

static void pack_lines(const Lines *x, PanelShape shape, PanelPart part, int lines, uint32_t *to)
{
    const bool narrow = x->dtype == BF16, pairs = shape.type == BF16;
    if (x->term == 1 && pairs)
        pack_group(TERMS_BF16, x, shape, part, lines, to);
    else if (x->term == 1 && narrow)
        pack_group(TERMS_WIDEN, x, shape, part, lines, to);
    else if (x->term == 1)
        pack_group(TERMS_F32, x, shape, part, lines, to);
    else if (x->line == 1 && pairs)
        pack_group(LINES_BF16, x, shape, part, lines, to);
    else if (x->line == 1 && narrow)
        pack_group(LINES_WIDEN, x, shape, part, lines, to);
    else if (x->line == 1)
        pack_group(LINES_F32, x, shape, part, lines, to);
    else
        for (int64_t w = 0; w < part.words; w += W)
            pack_edge(x, shape, (PanelPart){part.line, part.word + w, least(part.words - w, W)},
                      lines, to + w * shape.lines);
}

void panel_pack(const Lines *x, PanelShape shape, PanelPart part, uint32_t *to)
{
    for (int first = 0; first < shape.lines; first += W) {
        const int lines = (int)least(shape.lines - first, W);
        const PanelPart here = {part.line + first, part.word, part.words};
        pack_lines(x, shape, here, lines, to + first * shape.group);
    }
}

void panels_pack(const Lines *x, PanelShape shape, PanelPart part, int64_t panels, uint32_t *to)
{
    const int64_t whole = most(0, least(panels, (x->lines - part.line) / shape.lines));
    const int64_t rows = panel_rows(x, shape, part, whole, to);
    const int64_t run = x->term == 1 ? most(1, part.words) : RUN_WORDS;
    for (int64_t w = 0; w < part.words; w += run)
        for (int64_t i = rows < part.words ? 0 : whole; i < panels; i++) {
            const int64_t from = most(w, i < whole ? rows : 0), end = least(w + run, part.words);
            const PanelPart here = {part.line + i * shape.lines, part.word + from, end - from};
            if (from < end) panel_pack(x, shape, here, to + (i * part.words + from) * shape.lines);
        }
}
