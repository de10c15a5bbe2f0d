/* vec.h -- one vector type, as wide as the instruction set that the file is compiled for.
 *
 *     -mavx512f ..      16 lanes          the same sources are compiled once per row; at run time
 *     -mavx2 -mfma       8                the widest that the CPU supports is used
 *     (none)             4
 *
 * Arithmetic uses the compiler's vector extension: a * b + c becomes one FMA where the CPU has it.
 * Intrinsics are used only for operations that the extension lacks. */
#ifndef DEVICE_CPU_SIMD_VEC_H
#define DEVICE_CPU_SIMD_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { W = 16 };
#elif defined(__AVX2__)
enum { W = 8 };
#else
enum { W = 4 };
#endif

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t VI __attribute__((vector_size(4 * W)));
typedef uint32_t VU __attribute__((vector_size(4 * W)));
typedef uint16_t VH __attribute__((vector_size(2 * W)));

static inline V v_set(float x) { return x - (V){0}; }

static inline VI vi_set(int32_t x) { return x - (VI){0}; }

static inline V v_load(const float *p)
{
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void v_store(float *p, V v) { memcpy(p, &v, sizeof v); }

/* Loads the first n lanes; the others are zero. n may exceed W. */
static inline V v_load_to(const float *p, int64_t n)
{
    if (n >= W) return v_load(p);
#if defined(__AVX512F__)
    return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    V v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
#endif
}

static inline void v_store_to(float *p, int64_t n, V v)
{
    if (n >= W) {
        v_store(p, v);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

static inline VI v_bits(V v) { return (VI)v; }

static inline V v_from_bits(VI v) { return (V)v; }

/* Lanes of a where the mask is all ones, lanes of b where it is zero. */
static inline V v_pick(VI mask, V a, V b)
{
    return v_from_bits((mask & v_bits(a)) | (~mask & v_bits(b)));
}

/* True if any lane of the mask is all ones. */
static inline int v_any(VI mask)
{
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
    int any = 0;
    for (int i = 0; i < W; i++) any |= mask[i];
    return any != 0;
#endif
}

/* The larger one; x if either is NaN. */
static inline V v_max(V bound, V x)
{
#if defined(__AVX512F__)
    return (V)_mm512_max_ps((__m512)bound, (__m512)x);
#elif defined(__AVX2__)
    return (V)_mm256_max_ps((__m256)bound, (__m256)x);
#else
    return v_pick(bound > x, bound, x);
#endif
}

/* The smaller one; x if either is NaN. */
static inline V v_min(V bound, V x)
{
#if defined(__AVX512F__)
    return (V)_mm512_min_ps((__m512)bound, (__m512)x);
#elif defined(__AVX2__)
    return (V)_mm256_min_ps((__m256)bound, (__m256)x);
#else
    return v_pick(bound < x, bound, x);
#endif
}

static inline V v_sqrt(V x)
{
#if defined(__AVX512F__)
    return (V)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (V)_mm256_sqrt_ps((__m256)x);
#else
    V y;
    for (int i = 0; i < W; i++) y[i] = sqrtf(x[i]);
    return y;
#endif
}

/* Adds the upper half to the lower half, down to one lane: a fixed order for every width. */
static inline float v_sum(V v)
{
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 e = (__m256)_mm512_extractf64x4_pd((__m512d)v, 1);
    const __m256 eight = _mm512_castps512_ps256((__m512)v) + e;
#else
    const __m256 eight = (__m256)v;
#endif
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return two[0] + two[1];
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

/* The largest lane; no lane of v may be NaN. */
static inline float v_largest(V v)
{
#if defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 e = (__m256)_mm512_extractf64x4_pd((__m512d)v, 1);
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256((__m512)v), e);
#else
    const __m256 eight = (__m256)v;
#endif
    const __m128 half = _mm256_extractf128_ps(eight, 1);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), half);
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return two[0] > two[1] ? two[0] : two[1];
#else
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
#endif
}

static inline V v_load_bf16(const uint16_t *p)
{
#if defined(__AVX512F__) /* compilers emit four instructions for these two */
    const __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#else
    VH h;
    memcpy(&h, p, sizeof h);
    return (V)(__builtin_convertvector(h, VU) << 16);
#endif
}

/* Rounds to bf16 in the upper half of each lane: to nearest, ties to even; NaN stays NaN. */
static inline VU v_round_bf16(V v)
{
    const VU bits = (VU)v, up = (bits >> 16 & 1) + 0x7fff, quiet = bits | 0x400000;
#if defined(__AVX512F__)
    const __mmask16 number = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_ORD_Q);
    return (VU)_mm512_mask_add_epi32((__m512i)quiet, number, (__m512i)bits, (__m512i)up);
#else
    const VU nan = (VU)(v != v);
    return (nan & quiet) | (~nan & (bits + up));
#endif
}

static inline void v_store_bf16(uint16_t *p, V v)
{
    const VH h = __builtin_convertvector(v_round_bf16(v) >> 16, VH);
    memcpy(p, &h, sizeof h);
}

/* Stores 2 W elements: a, then b. */
static inline void v_store_bf16_pair(uint16_t *p, V a, V b)
{
#if defined(__AVX512BW__) /* one instruction picks the upper halves of both */
    static const uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                       23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                       45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i pick = _mm512_loadu_si512(upper), low = (__m512i)v_round_bf16(a);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(low, pick, (__m512i)v_round_bf16(b)));
#else
    v_store_bf16(p, a);
    v_store_bf16(p + W, b);
#endif
}

/* The same by AVX512-BF16, only on CPUs that have it: a sixth of the work. It treats denormal
 * numbers (below 2^-126) as zero. Inline assembly, because an intrinsic would require compiling all
 * callers for AVX512-BF16. */
static inline void v_store_bf16_pair_hw(uint16_t *p, V a, V b)
{
#if defined(__AVX512F__)
    __m512i both;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a), "v"(b));
    _mm512_storeu_si512(p, both);
#else
    v_store_bf16_pair(p, a, b);
#endif
}

#endif
