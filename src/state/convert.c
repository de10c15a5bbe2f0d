/* convert.c -- converts via f32, of which the 16-bit types are truncations:
 *
 *     f32    s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
 *     bf16   s eeeeeeee mmmmmmm                       the upper half
 *     f16    s eeeee mmmmmmmmmm                       another exponent: 2^-24 to 65504
 *
 * f64 is first rounded to odd if the target has 16 bits, so that the second rounding sees the bits
 * that the first dropped. */
#include "state/convert.h"

#include <math.h>
#include <string.h>
#include "base/fp8.h"

enum { TILE = 512 };

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

static uint16_t to_bf16(uint32_t bits)
{
    if (is_nan(bits)) return (uint16_t)(bits >> 16 | (bits & 0x7F0000u ? 0 : 0x40));
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/* Subnormal results (below 2^-14) have the fixed last place 2^-24: adding 0.5 in f32
 * rounds there. */
static uint16_t to_f16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
    if (is_nan(bits))
        return (uint16_t)(sign | 0x7C00u | (rest & 0x7FE000u ? rest >> 13 & 0x3FFu : 0x200u));
    if (rest >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* from 65520 on: infinite */
    if (rest < 0x38800000u)
        return (uint16_t)(sign | (bits_of(float_of(rest) + 0.5F) - bits_of(0.5F)));
    return (uint16_t)(sign | (rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1)) >> 13);
}

static uint32_t from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, e = half >> 10 & 31, m = half & 0x3FF;
    if (e == 31) return sign | 0x7F800000u | m << 13;
    if (e == 0) return sign | bits_of((float)m * 0x1p-24F);
    return sign | (e + 112) << 23 | m << 13;
}

/* Rounds to odd: returns x if it is exact, else the neighbour whose last bit is 1. */
static float to_odd(double x)
{
    float near = (float)x;
    if (!((double)near != x) || isinf(x)) return near; /* exact, or NaN */
    uint32_t bits = bits_of(near);
    if (fabs((double)near) > fabs(x)) bits--; /* towards zero, also from infinity */
    return float_of(bits | 1);
}

static bool is_fp8(StType t) { return t == ST_F8_E4M3 || t == ST_F8_E5M2; }

static void to_floats(StType from, const char *in, bool odd, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;
        uint32_t bits;
        if (from == ST_F64) {
            memcpy(&wide, in + 8 * i, sizeof wide);
            out[i] = odd ? to_odd(wide) : (float)wide;
            continue;
        }
        if (from == ST_F32) {
            memcpy(&bits, in + 4 * i, sizeof bits);
        } else if (is_fp8(from)) {
            out[i] = fp8_get(from == ST_F8_E4M3 ? E4M3 : E5M2, (uint8_t)in[i]);
            continue;
        } else {
            memcpy(&half, in + 2 * i, sizeof half);
            bits = from == ST_BF16 ? (uint32_t)half << 16 : from_f16(half);
        }
        memcpy(&out[i], &bits, sizeof bits);
    }
}

static void from_floats(StType to, const float *in, char *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        if (to == ST_F64) {
            const double wide = (double)in[i];
            memcpy(out + 8 * i, &wide, sizeof wide);
        } else if (to == ST_F32) {
            memcpy(out + 4 * i, &bits, sizeof bits);
        } else {
            const uint16_t half = to == ST_BF16 ? to_bf16(bits) : to_f16(bits);
            memcpy(out + 2 * i, &half, sizeof half);
        }
    }
}

/* Counts the infinite elements. */
static int64_t infinite(StType type, const char *x, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;
        double wide;
        if (type == ST_F64) {
            memcpy(&wide, x + 8 * i, sizeof wide);
            count += isinf(wide) != 0;
        } else if (type == ST_F32) {
            memcpy(&bits, x + 4 * i, sizeof bits);
            count += (bits & 0x7FFFFFFFu) == 0x7F800000u;
        } else {
            memcpy(&half, x + 2 * i, sizeof half);
            count += (half & 0x7FFF) == (type == ST_BF16 ? 0x7F80 : 0x7C00);
        }
    }
    return count;
}

bool convert_supports(StType t)
{
    return t == ST_F64 || t == ST_F32 || t == ST_F16 || t == ST_BF16;
}

/* True if a finite element may be too large for the target type. */
static bool narrows(StType from, StType to)
{
    return from != to && (from == ST_F64 || to == ST_F16 || (from == ST_F32 && to == ST_BF16));
}

int64_t convert(StType from, const void *in, StType to, void *out, int64_t n)
{
    const int64_t a = st_type_bytes(from), b = st_type_bytes(to);
    const bool odd = to == ST_F16 || to == ST_BF16, counts = narrows(from, to);
    int64_t over = 0;
    float tile[TILE];
    char before[8 * TILE];
    MUST((convert_supports(from) || is_fp8(from)) && convert_supports(to), "%s to %s",
         st_type_name(from), st_type_name(to));
    if (from == to) {
        memmove(out, in, (size_t)(n * a));
        return 0;
    }
    for (int64_t i = 0; i < n; i += TILE) {
        const int64_t now = n - i < TILE ? n - i : TILE;
        memcpy(before, (const char *)in + i * a, (size_t)(now * a)); /* `out` may overlap it */
        to_floats(from, before, odd, tile, now);
        from_floats(to, tile, (char *)out + i * b, now);
        if (counts)
            over += infinite(to, (const char *)out + i * b, now) - infinite(from, before, now);
    }
    return over;
}
