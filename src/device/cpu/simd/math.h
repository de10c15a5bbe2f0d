/* math.h -- exp, powers of 2 and the logistic function of a vector; sine and cosine of an angle.
 *
 *     e^x = 2^n e^r, n the multiple of 1/PARTS that is nearest to x / ln 2, |r| <= ln 2 / (2 PARTS)
 *
 * 2^n is assembled from bits, e^r - 1 is a polynomial. A vector of 16 lanes holds a table of
 * 2^(i/16), and three terms suffice; else PARTS is 1 and the polynomial has six terms (Cephes'
 * expf).
 *
 * exp: relative error under 0.76 * 2^-23 for x in [-87.33, 88.02] (compared for every f32 there but
 * the tiniest); 0 below, e^88 above, NaN for NaN. */
#ifndef DEVICE_CPU_SIMD_MATH_H
#define DEVICE_CPU_SIMD_MATH_H

#include "device/cpu/simd/vec.h"

#if defined(__AVX512F__)
enum { PARTS = 16 };
#else
enum { PARTS = 1 };
#endif

/* Adding and subtracting it rounds to the nearest multiple of 1/PARTS. The sum has PARTS times that
 * multiple in its low bits. */
#define ROUNDER (12582912.0f / PARTS) /* 1.5 * 2^23 */

/* 2^n e^r with n = shifted - ROUNDER; the result must be a normal number. */
static inline V v_scaled(V shifted, V r)
{
#if defined(__AVX512F__)
    /* Bits of 2^(i/16) / (1 + MORE) minus i << 19, which n contributes. MORE was found by search:
     * the rounding of an entry plus the final rounding is under 1.1 * 2^-24 with it, 1.8
     * without. */
#define MORE (-0x1.4c7beap-10f)
    static const int32_t entry[16] = {0x3f80299d, 0x3f7dd638, 0x3f7bc323, 0x3f79f337,
                                      0x3f78696d, 0x3f7728e0, 0x3f7634ce, 0x3f75909a,
                                      0x3f753fcd, 0x3f754618, 0x3f75a757, 0x3f766791,
                                      0x3f778af9, 0x3f7915f4, 0x3f7b0d19, 0x3f7d7530};
    const __m512i table = _mm512_loadu_si512(entry);
    const VU found = (VU)_mm512_permutexvar_epi32((__m512i)shifted, table);
    const V power = (V)(found + ((VU)shifted << 19)); /* wraps only for x out of range */
    V p = r * ((1 + MORE) / 6) + (1 + MORE) / 2;
    p = p * r + (1 + MORE);
    return power * (p * r + MORE) + power;
#else
    const V power = (V)(((VU)shifted - (VU)v_set(ROUNDER) + 127) << 23);
    V p = v_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return power * (p * (r * r) + r) + power;
#endif
}

static inline V v_exp(V given)
{
    const V x = v_min(v_set(88.02f), given);
    const V shifted = x * 1.44269504f + ROUNDER;
    const V n = shifted - ROUNDER;
    const V r = x - n * 0.693359375f +
                n * 2.12194440e-4f; /* ln 2 as two constants; n times the first is exact */
    return v_from_bits(v_bits(v_scaled(shifted, r)) & ~(given < v_set(-87.33f)));
}

/* 2^x for x in [-126, 127], with less work than e^x. Relative error under 2.1 * 2^-23 (compared for
 * every f32); 2^0 is exactly 1; NaN for NaN. */
static inline V v_power(V x)
{
    const V shifted = x + ROUNDER;
    const V f = x - (shifted - ROUNDER);
#if defined(__AVX512F__)
    static const int32_t entry[16] = {0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0,
                                      0x3f76f532, 0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4,
                                      0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7,
                                      0x3f7d257d}; /* bits of 2^(i/16) minus i << 19 */
    const __m512i table = _mm512_loadu_si512(entry);
    const VU found = (VU)_mm512_permutexvar_epi32((__m512i)shifted, table);
    const V power = (V)(found + ((VU)shifted << 19));
    V p = f * 5.550280586e-02f + 2.402358949e-01f;
    p = p * f + 6.931471825e-01f;
#else
    const V power = (V)(((VU)shifted << 23) + (127u << 23));
    V p = f * 1.327647129e-3f + 9.675540961e-3f;
    p = p * f + 5.550712720e-2f;
    p = p * f + 2.402211875e-1f;
    p = p * f + 6.931469440e-1f;
#endif
    return power * (p * f + 1.0f);
}

/* 2^x for all x <= 127, as attention weights need it: under 2^-126 from -126 down to -127, 0
 * below. */
static inline V v_exp2(V x) { return v_power(v_max(v_set(-127), x)); }

/* 1 / x for x in [1, 2^126]. Relative error under 1.01 * 2^-24 by a Newton step from a 14-bit
 * estimate, 2^-24 by division. A division occupies its port for ten cycles, the Newton step takes
 * four. */
static inline V v_reciprocal(V x)
{
#if defined(__AVX512F__)
    const V estimate = (V)_mm512_rcp14_ps((__m512)x);
    return estimate + estimate * (1 - x * estimate);
#else
    return 1 / x;
#endif
}

/* s = 1 / (1 + e^-x), and rest = 1 - s without the cancellation of a subtraction. */
static inline V v_logistic(V x, V *rest)
{
    const V e = v_exp(-x), s = 1.0f / (1.0f + e);
    *rest = e * s;
    return s;
}

/* Sine and cosine of an angle in revolutions, |turns| <= 1/2: absolute error under 3e-7. The angle
 * is reduced to a quarter revolution, where Taylor series up to powers 11 and 12 suffice. */
static inline void v_sine_cosine(V turns, V *sine, V *cosine)
{
    const V quarter = v_set(0.25f), half = v_set(0.5f);
    const VI over = turns > quarter, under = turns < -quarter;
    /* sin(a) = sin(pi - a), cos(a) = -cos(pi - a) */
    const V folded = v_pick(over, half - turns, v_pick(under, -half - turns, turns));
    const V a = folded * 6.28318531f, s = a * a;
    V p = v_set(-2.50521084e-8f);
    p = p * s + 2.75573192e-6f;
    p = p * s - 1.98412698e-4f;
    p = p * s + 8.33333333e-3f;
    p = p * s - 1.66666667e-1f;
    *sine = p * s * a + a;
    V q = v_set(2.08767570e-9f);
    q = q * s - 2.75573192e-7f;
    q = q * s + 2.48015873e-5f;
    q = q * s - 1.38888889e-3f;
    q = q * s + 4.16666667e-2f;
    q = q * s - 0.5f;
    const V c = q * s + 1.0f;
    *cosine = v_pick(over | under, -c, c);
}

#endif
