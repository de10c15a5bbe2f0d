/* math.h -- exp and the logistic function of a vector; sine and cosine of a turn.
 *
 * exp(x) = 2^n e^r, n the integer nearest to x / ln 2, e^r by a polynomial on |r| <= ln 2 / 2
 * (coefficients of Cephes' expf). Relative error under 0.75 * 2^-23 for x in [-87.33, 88.02]
 * (every f32 there but the tiniest was compared); 0 below, e^88 above, NaN for NaN. */
#ifndef DEVICE_CPU_SIMD_MATH_H
#define DEVICE_CPU_SIMD_MATH_H

#include "device/cpu/simd/vec.h"

/* Added and taken away again, it leaves the nearest integer; while it is there, that integer is in
 * the low bits. */
#define ROUNDER 12582912.0f /* 1.5 * 2^23 */

static inline V v_exp(V given)
{
    const V low = v_set(-87.33f);
    const V x = v_min(v_set(88.02f), v_max(low, given));
    const V shifted = x * 1.44269504f + ROUNDER;
    const V n = shifted - ROUNDER;
    const V r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts: the first exact */
    V p = v_set(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const VI power = (v_bits(shifted) - v_bits(v_set(ROUNDER)) + 127) << 23;
    return v_from_bits(v_bits(p * v_from_bits(power)) & ~(given < low));
}

/* 1 / (1 + e^-x), and what is missing to 1, which a subtraction would not find again. */
static inline V v_logistic(V x, V *rest)
{
    const V e = v_exp(-x), s = 1.0f / (1.0f + e);
    *rest = e * s;
    return s;
}

/* Of an angle in turns, |turns| <= 1/2: absolute error under 3e-7. The half turn is folded to a
 * quarter, where Taylor series to the eleventh and twelfth power suffice. */
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
