/* bf16_dot.h -- VNNI pairs of bf16: their products, and how they are made.
 *
 *     store_adjacent_pairs       a0 a1 .., b0 b1 ..  ->  (a0 a1) (a2 a3) .. (b0 b1) ..
 *     store_interleaved_pairs    a0 a1 .., b0 b1 ..  ->  (a0 b0) (a1 b1) ..
 *     interleave_rows            the same as the second, of two rows that are bf16 already
 *
 * Builds without AVX-512 have equivalent loops, so that callers compile; no CPU selects them. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_BF16_DOT_H
#define DEVICE_CPU_SIMD_ATTENTION_BF16_DOT_H

#include "device/cpu/simd/attention/attention.h"

#if defined(__AVX512F__)

#define DOT_TARGET __attribute__((target("avx512bf16")))

DOT_TARGET static inline V dot(V sum, uint32_t x, const uint32_t *b)
{
    return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x),
                               (__m512bh)_mm512_loadu_si512(b));
}

/* Permutation that interleaves the two halves: lane i of the first, lane i of the second. */
static inline __m512i zip_order(void)
{
    const __m512i even = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(even,
                           _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(16)), 16));
}

DOT_TARGET static inline void store_adjacent_pairs(uint32_t *to, V first, V second)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

DOT_TARGET static inline void store_interleaved_pairs(uint32_t *to, V even, V odd)
{
    const __m512i x = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(zip_order(), x));
}

/* Pairs the bf16 of W dwords with those of the next row, `step` dwords on. */
static inline void interleave_rows(const uint32_t *from, int64_t step, uint32_t *to)
{
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + step);
    /* Element i of a with element i of b, which has index 32 + i in the concatenation. */
    const __m512i first = _mm512_add_epi32(zip_order(), _mm512_set1_epi32(16 << 16));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(16 << 16 | 16));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, first, b));
    _mm512_storeu_si512(to + W, _mm512_permutex2var_epi16(a, second, b));
}

#else

#define DOT_TARGET

static inline V dot(V sum, uint32_t x, const uint32_t *b)
{
    VU dwords;
    memcpy(&dwords, b, sizeof dwords);
    const VU both = x - (VU){0};
    return sum + (V)(both & 0xffff0000u) * (V)(dwords & 0xffff0000u) +
           (V)(both << 16) * (V)(dwords << 16);
}

static inline void store_adjacent_pairs(uint32_t *to, V first, V second)
{
    uint16_t half[2 * W];
    v_store_bf16(half, first);
    v_store_bf16(half + W, second);
    memcpy(to, half, sizeof half);
}

static inline void store_interleaved_pairs(uint32_t *to, V even, V odd)
{
    uint16_t low[W], high[W];
    v_store_bf16(low, even);
    v_store_bf16(high, odd);
    for (int i = 0; i < W; i++) to[i] = (uint32_t)high[i] << 16 | low[i];
}

static inline void interleave_rows(const uint32_t *from, int64_t step, uint32_t *to)
{
    for (int i = 0; i < W; i++) {
        to[2 * i] = (from[i] & 0xffffu) | from[step + i] << 16;
        to[2 * i + 1] = from[i] >> 16 | (from[step + i] & 0xffff0000u);
    }
}

#endif

#endif
