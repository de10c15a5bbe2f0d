/* pack.c -- packing in W x W blocks of dwords, transposed in registers.
 *
 * A square of W mn indices by W dwords is loaded by mn if k is contiguous in memory, or by dword if
 * mn is. It is stored by dword (k_group 1) or by mn (k_group W). A square whose load and store
 * differ is transposed in between. Squares at an edge, and operands that are contiguous in neither
 * direction, are packed element by element. pack_rows.c handles most cases that need no
 * transposition. */
#include "device/cpu/simd/gemm/pack.h"

typedef struct {
    VU v[W];
} DwordSquare;

/* The load of a square: the contiguous direction, and the conversion. */
typedef enum {
    ALONG_K_BF16,
    ALONG_K_WIDEN,
    ALONG_K_F32,
    ALONG_MN_BF16,
    ALONG_MN_WIDEN,
    ALONG_MN_F32
} PackLoad;

static inline VU load_dwords(const void *p)
{
    VU v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline VU load_widened(const uint16_t *p) { return (VU)v_load_bf16(p); }

static inline VU widen(VH v) { return __builtin_convertvector(v, VU); }

/* The first n lanes, zeros after them; n may exceed W. */
static inline VH load_halves(const uint16_t *p, int64_t n)
{
    VH v = {0};
    if (n >= W)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

/* Transposes in log2(W) stages: stage d swaps the off-diagonal d x d blocks of each 2d x 2d
 * block. */
static inline __attribute__((always_inline)) void transpose_square(DwordSquare *s)
{
#if defined(__AVX512F__)
    static const int32_t lane[W] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    VI own;
    memcpy(&own, lane, sizeof own);
#pragma GCC unroll 4
    for (int d = W / 2; d > 0; d /= 2) {
        const VI upper = (own & d) != 0; /* lanes from the second operand, index + W */
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

/* The first element of a square, and the number of mn indices that exist; the others are zero. */
typedef struct {
    const char *at;
    int64_t mn_stride, k_stride, live;
} PackCorner;

/* Dwords packed of every panel before the first panel continues, where mn is contiguous: a row of
 * the operand is then read for all panels while its cache lines are in L1. */
enum { RUN_DWORDS = 64 };

/* Returns `at` and prefetches the same place of the next square, W indices further along mn: a
 * stretch along k is too short for the hardware prefetcher. */
static inline const void *prefetch_along_mn(const char *at, int64_t mn_bytes)
{
    __builtin_prefetch(at + W * mn_bytes, 0, 2);
    return at;
}

/* Returns `at` and prefetches the same place of the next run, RUN_DWORDS further along k. */
static inline const void *prefetch_along_k(const char *at, int64_t dword_bytes)
{
    __builtin_prefetch(at + RUN_DWORDS * dword_bytes, 0, 2);
    return at;
}

/* Vector i of a square: mn index i along k, or dword i along mn. */
static inline __attribute__((always_inline)) VU load_vector(PackLoad load, const PackCorner *c,
                                                            int i)
{
    const int64_t mn = 2 * c->mn_stride, k = 2 * c->k_stride; /* bytes, for bf16 */
    if (load <= ALONG_K_F32 && i >= c->live) return (VU){0};
    switch (load) {
    case ALONG_K_BF16:
        return load_dwords(prefetch_along_mn(c->at + i * mn, mn));
    case ALONG_K_WIDEN:
        return load_widened(prefetch_along_mn(c->at + i * mn, mn));
    case ALONG_K_F32:
        return load_dwords(prefetch_along_mn(c->at + 2 * i * mn, 2 * mn));
    case ALONG_MN_WIDEN:
        return widen(load_halves(prefetch_along_k(c->at + i * k, k), c->live)) << 16;
    case ALONG_MN_F32:
        return (VU)v_load_to(prefetch_along_k(c->at + 2 * i * k, 2 * k), c->live);
    default:
        return widen(load_halves(prefetch_along_k(c->at + 2 * i * k, 2 * k), c->live)) |
               widen(load_halves(prefetch_along_k(c->at + (2 * i + 1) * k, 2 * k), c->live)) << 16;
    }
}

#if defined(__AVX512F__)
/* Transposes four rows of W dwords: the four of each dword go to to[dword * step] and on. Working
 * in 128-bit quarters takes half as long as a whole square in registers. */
static inline __attribute__((always_inline)) void transpose_four(const VU row[4], int64_t step,
                                                                 uint32_t *to)
{
    const __m512i a = (__m512i)row[0], b = (__m512i)row[1];
    const __m512i c = (__m512i)row[2], d = (__m512i)row[3];
    const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const __m512i ab2 = _mm512_unpackhi_epi32(a, b), cd2 = _mm512_unpackhi_epi32(c, d);
    const __m512i dword[4] = {_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd),
                              _mm512_unpacklo_epi64(ab2, cd2), _mm512_unpackhi_epi64(ab2, cd2)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        uint32_t *const at = to + i * step;
        _mm_storeu_si128((void *)at, _mm512_castsi512_si128(dword[i]));
        _mm_storeu_si128((void *)(at + 4 * step), _mm512_extracti32x4_epi32(dword[i], 1));
        _mm_storeu_si128((void *)(at + 8 * step), _mm512_extracti32x4_epi32(dword[i], 2));
        _mm_storeu_si128((void *)(at + 12 * step), _mm512_extracti32x4_epi32(dword[i], 3));
    }
}
#endif

/* Packs a square whose W dwords all exist; writes `width` <= W of its mn indices. */
static inline __attribute__((always_inline)) void
pack_square(PackLoad load, PackCorner corner, PanelShape shape, int width, uint32_t *to)
{
#if defined(__AVX512F__)
    if (load <= ALONG_K_F32 && shape.k_group == 1 && width % 4 == 0) {
        for (int i = 0; i < width; i += 4) {
            const VU four[4] = {load_vector(load, &corner, i), load_vector(load, &corner, i + 1),
                                load_vector(load, &corner, i + 2),
                                load_vector(load, &corner, i + 3)};
            transpose_four(four, shape.width, to + i);
        }
        return;
    }
#endif
    DwordSquare s;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) s.v[i] = load_vector(load, &corner, i);
    if ((load <= ALONG_K_F32) == (shape.k_group == 1)) transpose_square(&s);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        if (shape.k_group == 1)
            v_store_to((float *)(void *)(to + i * shape.width), width, (V)s.v[i]);
        else
            memcpy(to + i * W, &s.v[i], sizeof s.v[i]);
}

static int elements_per_dword(PanelShape shape) { return shape.type == BF16 ? 2 : 1; }

static const char *element_at(const PackOperand *x, int64_t mn, int64_t k)
{
    return x->at + (mn * x->mn_stride + k * x->k_stride) * (int64_t)dtype_bytes(x->dtype);
}

/* Packs a square at an edge element by element; writes part.dwords <= W dwords. */
static void pack_edge(const PackOperand *x, PanelShape shape, PanelPart part, int width,
                      uint32_t *to)
{
    const int per = elements_per_dword(shape);
    for (int i = 0; i < width; i++)
        for (int64_t d = 0; d < part.dwords; d++) {
            uint32_t dword = 0;
            for (int e = 0; e < per; e++) {
                const int64_t mn = part.mn + i, k = (part.dword + d) * per + e;
                uint32_t bits = 0;
                if (mn < x->mn && k < x->k)
                    memcpy(&bits, element_at(x, mn, k), dtype_bytes(x->dtype));
                if (x->dtype == BF16 && per == 1) bits <<= 16; /* bf16 to f32 */
                dword |= bits << 16 * e;
            }
            to[shape.k_group == 1 ? d * shape.width + i : i * W + d] = dword;
        }
}

/* Packs `width` <= W mn indices, along all dwords of the part. */
static inline __attribute__((always_inline)) void pack_along_k(PackLoad load, const PackOperand *x,
                                                               PanelShape shape, PanelPart part,
                                                               int width, uint32_t *to)
{
    const int per = elements_per_dword(shape);
    const int64_t full = x->k / per - part.dword, left = x->mn - part.mn;
    const int64_t live = max_i64(0, load <= ALONG_K_F32 ? min_i64(left, width) : left);
    for (int64_t d = 0; d < part.dwords; d += W) {
        uint32_t *const at = to + d * shape.width;
        const PanelPart here = {part.mn, part.dword + d, min_i64(part.dwords - d, W)};
        const PackCorner corner = {element_at(x, here.mn, here.dword * per), x->mn_stride,
                                   x->k_stride, live};
        if (here.dwords == W && d + W <= full)
            pack_square(load, corner, shape, width, at);
        else
            pack_edge(x, shape, here, width, at);
    }
}

/* The same with the load chosen by the operand: one inlined body for each constant. */
static void pack_indices(const PackOperand *x, PanelShape shape, PanelPart part, int width,
                         uint32_t *to)
{
    const bool narrow = x->dtype == BF16, pairs = shape.type == BF16;
    if (x->k_stride == 1 && pairs)
        pack_along_k(ALONG_K_BF16, x, shape, part, width, to);
    else if (x->k_stride == 1 && narrow)
        pack_along_k(ALONG_K_WIDEN, x, shape, part, width, to);
    else if (x->k_stride == 1)
        pack_along_k(ALONG_K_F32, x, shape, part, width, to);
    else if (x->mn_stride == 1 && pairs)
        pack_along_k(ALONG_MN_BF16, x, shape, part, width, to);
    else if (x->mn_stride == 1 && narrow)
        pack_along_k(ALONG_MN_WIDEN, x, shape, part, width, to);
    else if (x->mn_stride == 1)
        pack_along_k(ALONG_MN_F32, x, shape, part, width, to);
    else
        for (int64_t d = 0; d < part.dwords; d += W)
            pack_edge(x, shape, (PanelPart){part.mn, part.dword + d, min_i64(part.dwords - d, W)},
                      width, to + d * shape.width);
}

void panel_pack(const PackOperand *x, PanelShape shape, PanelPart part, uint32_t *to)
{
    for (int first = 0; first < shape.width; first += W) {
        const int width = (int)min_i64(shape.width - first, W);
        const PanelPart here = {part.mn + first, part.dword, part.dwords};
        pack_indices(x, shape, here, width, to + first * shape.k_group);
    }
}

void panels_pack(const PackOperand *x, PanelShape shape, PanelPart part, int64_t panels,
                 uint32_t *to)
{
    const int64_t full = max_i64(0, min_i64(panels, (x->mn - part.mn) / shape.width));
    const int64_t done = panels_pack_rows(x, shape, part, full, to);
    const int64_t run = x->k_stride == 1 ? max_i64(1, part.dwords) : RUN_DWORDS;
    for (int64_t d = 0; d < part.dwords; d += run)
        for (int64_t i = done < part.dwords ? 0 : full; i < panels; i++) {
            const int64_t from = max_i64(d, i < full ? done : 0),
                          end = min_i64(d + run, part.dwords);
            const PanelPart here = {part.mn + i * shape.width, part.dword + from, end - from};
            if (from < end) panel_pack(x, shape, here, to + (i * part.dwords + from) * shape.width);
        }
}
