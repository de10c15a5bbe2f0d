/* vec.h -- one vector type, as wide as the instructions this file is compiled for.
 *
 *     -mavx512f ..      16 lanes          the same sources are compiled once for each row, and
 *     -mavx2 -mfma       8                a CPU is given the widest that it can run
 *     nothing            4
 *
 * Arithmetic is the compiler's vector extension (a * b + c becomes one instruction where there is
 * one); only what it cannot say is an intrinsic. */
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

/* The first n lanes; zeros after them. n may be more than W. */
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

/* Lanes of a where the mask is all ones, of b where it is zero. */
static inline V v_pick(VI mask, V a, V b)
{
    return v_from_bits((mask & v_bits(a)) | (~mask & v_bits(b)));
}

/* The larger; x where one of the two is NaN. */
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

/* The smaller; x where one of the two is NaN. */
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

/* Halves folded on halves: the same order whatever the data. */
static inline float v_sum(V v)
{
    float x[W];
    v_store(x, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

static inline float v_largest(V v)
{
    float x[W];
    v_store(x, v);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i + half] > x[i] ? x[i + half] : x[i];
    return x[0];
}

static inline V v_load_bf16(const uint16_t *p)
{
    VH h;
    memcpy(&h, p, sizeof h);
    return (V)(__builtin_convertvector(h, VU) << 16);
}

/* To nearest, ties to even; a NaN stays one. */
static inline void v_store_bf16(uint16_t *p, V v)
{
    const VU bits = (VU)v, nan = (VU)(v != v);
    const VU rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const VH h = __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), VH);
    memcpy(p, &h, sizeof h);
}

#endif
