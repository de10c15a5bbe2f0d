/* fp8.h -- the two floating types of 8 bits, after "FP8 Formats for Deep Learning" (OCP).
 *
 *     type   sign  exponent  fraction   bias   largest   smallest    infinity   NaN
 *     e4m3   1     4         3          7      448       2^-9        none       0x7f, 0xff
 *     e5m2   1     5         2          15     57344     2^-16       0x7c       0x7d .. 0x7f
 *
 * Conversion rounds once, to nearest, ties to even, and saturates as cvt.rn.satfinite of a GPU
 * does: values beyond the largest, infinities too, become the largest; NaN becomes 0x7f. */
#ifndef BASE_FP8_H
#define BASE_FP8_H

#include <string.h>
#include "base/dtype.h"

typedef struct {
    int fraction, bias;
    uint8_t largest; /* its code */
    float max;       /* its value */
} Fp8Format;

static inline Fp8Format fp8_format(DType t)
{
    return t == E4M3 ? (Fp8Format){3, 7, 0x7e, 448} : (Fp8Format){2, 15, 0x7b, 57344};
}

static inline uint32_t fp8_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float fp8_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint8_t fp8_round(Fp8Format f, float x)
{
    const uint32_t all = fp8_bits_of(x), sign = all >> 24 & 0x80, u = all & 0x7fffffff;
    const int drop = 23 - f.fraction; /* bits of an f32 fraction that are rounded away */
    const uint32_t smallest_normal = (uint32_t)(128 - f.bias) << 23;
    if (u > 0x7f800000) return 0x7f;
    if (u >= fp8_bits_of(f.max)) return (uint8_t)(sign | f.largest);
    if (u < smallest_normal) { /* a sum whose last digit is that of the result rounds to it */
        const uint32_t base = (uint32_t)(128 - f.bias + drop) << 23;
        return (uint8_t)(sign | (fp8_bits_of(fp8_float_of(u) + fp8_float_of(base)) - base));
    }
    const uint32_t even = u >> drop & 1;
    const uint32_t rounded = u + ((1u << (drop - 1)) - 1) + even;
    return (uint8_t)(sign | (rounded - ((uint32_t)(127 - f.bias) << 23)) >> drop);
}

static inline float fp8_value(Fp8Format f, uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    const uint32_t exponent = rest >> f.fraction;
    if (rest > f.largest)
        return fp8_float_of(sign | (rest == 0x7c && f.fraction == 2 ? 0x7f800000 : 0x7fc00000));
    if (exponent == 0) /* fraction x 2^(1 - bias - digits) */
        return (code & 0x80 ? -1.0f : 1.0f) * (float)rest *
               fp8_float_of((uint32_t)(128 - f.bias - f.fraction) << 23);
    return fp8_float_of(sign | ((rest << (23 - f.fraction)) + ((uint32_t)(127 - f.bias) << 23)));
}

/* Local. x as a value of type E4M3 or E5M2. */
static inline uint8_t fp8_of(DType t, float x) { return fp8_round(fp8_format(t), x); }
static inline float fp8_get(DType t, uint8_t code) { return fp8_value(fp8_format(t), code); }

/* Rows, and columns, of a block of a weight that has a scale of its own. */
enum { FP8_BLOCK = 128 };

/* The scale of values whose largest magnitude is `amax`: a value is code x scale. `inverse` is what
 * values are multiplied by before they are rounded. Both are f32 on every device. A scale of values
 * that are all 0 is 1; of values that are not finite, NaN results. */
typedef struct {
    float scale, inverse;
} Fp8Scale;

static inline Fp8Scale fp8_scale(DType t, float amax)
{
    const float max = fp8_format(t).max, least = 0x1p-100f;
    if (amax == 0) return (Fp8Scale){1, 1};
    const float a = amax < least ? least : amax;
    return (Fp8Scale){a / max, max / a};
}

/* Delayed scaling: the scale of a value follows from its largest magnitudes in steps before, of
 * which the exponents are marked. A site is a value of a unit that is quantized so; it has a mark
 * for each exponent: 1 if a micro-batch of the last step had it, half as much after each step.
 * Marks below FP8_OLDEST are forgotten.
 *
 *     exponent   -40 .. 23        marks  0 0 1/2 1 1 0 0        the largest marked decides
 *
 * Marks are sums, so ranks and micro-batches add theirs as they add gradients, and the result does
 * not depend on how many there are. A scale is a power of two that leaves room for a magnitude 3.5
 * times the largest. A site without marks, in the first step, has room for activations up to 28 and
 * gradients of sums of losses up to 224. */
enum { FP8_BINS = 64, FP8_LEAST_EXPONENT = -40, FP8_SITES = 32 };
#define FP8_OLDEST 0x1p-7f

/* The bin of a magnitude; -1: 0 and NaN have none. */
static inline int fp8_bin(float amax)
{
    const int exponent = (int)(fp8_bits_of(amax) >> 23 & 0xff) - 127 - FP8_LEAST_EXPONENT;
    if (!(amax > 0)) return -1;
    return exponent < 0 ? 0 : exponent >= FP8_BINS ? FP8_BINS - 1 : exponent;
}

/* The scale of a site, from its bins. */
static inline float fp8_delayed_scale(DType t, const float *mark)
{
    int bin = FP8_BINS - 1;
    while (bin >= 0 && !(mark[bin] >= FP8_OLDEST)) bin--;
    if (bin < 0) return t == E4M3 ? 0x1p-4f : 0x1p-8f;
    const int exponent = bin + FP8_LEAST_EXPONENT + 1 - (t == E4M3 ? 7 : 14);
    return fp8_float_of((uint32_t)(127 + exponent) << 23);
}

/* The mark after a step, from the sum over its micro-batches. */
static inline float fp8_mark(float mark, float sum) { return sum > 0 ? 1 : 0.5f * mark; }

#endif
