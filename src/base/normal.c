/* normal.c -- standard normal numbers by Box-Muller, vectorized.
 *
 *     a, b of element i   two uniform fractions from its four words of Philox
 *     normal              sqrt(-2 log(1 - a)) cos(2 pi b)
 *
 * The logarithm and the cosine are implemented here from sums, products, quotients and roots, each
 * rounded by IEEE 754. So an element has the same bits on every machine, whatever its math library
 * and its vector width. The error is a few ulp of a double. No step branches, so the compiler
 * vectorizes the blocks. */
#include <math.h>
#include <string.h>

#include "base/philox.h"

enum { BLOCK = 64, ROUNDS = 10 };

/* Clones for wider vectors, up to the widest of the build; the loader picks one at start. GCC
 * without sanitizers only. */
#if !defined(__GNUC__) || defined(__clang__) || defined(__SANITIZE_THREAD__) ||                    \
    defined(__SANITIZE_ADDRESS__)
#define WIDE
#elif defined(SHEAF_CPU_AVX512)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#elif defined(SHEAF_CPU_AVX2)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static inline double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The top 53 of 64 bits as a fraction of 1, exactly. Its upper 21 and lower 32 bits become
 * mantissas of 2^52 + x, from which 2^52 is subtracted: no conversion instruction is needed. */
static inline double fraction(uint32_t low, uint32_t high)
{
    const double upper = of_bits(0x4330000000000000u | high >> 11) - 0x1p52;
    const double lower = of_bits(0x4330000000000000u | (high << 21 | low >> 11)) - 0x1p52;
    return upper * 0x1p-21 + lower * 0x1p-53;
}

/* log x for positive x that is not subnormal: x = m 2^e with m in [sqrt 1/2, sqrt 2), and log m = 2
 * (s + s^3/3 + s^5/5 + ...) with s = (m - 1) / (m + 1), |s| < 0.172. */
static inline double log_of(double x)
{
    const uint64_t bits = bits_of(x), above = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    const double e = of_bits(0x4330000000000000u | above >> 52) - (0x1p52 + 1023);
    const double m = of_bits((above & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 23;
    p = p * z + 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    const double log2_high = 0x1.62e42fefap-1, log2_low = 0x1.cf79abc9e3b39p-40;
    return e * log2_high + (2 * s + (2 * s * z * p + e * log2_low));
}

/* cos(2 pi u) for u in [0, 1): reduces to the nearest quarter turn; the rest, at most an eighth of
 * a turn, goes into the series of cosine or sine. */
static inline double cos_of_turns(double u)
{
    const double quarters = 4 * u, shifted = quarters + 0x1.8p52;
    const double x = (quarters - (shifted - 0x1.8p52)) * 1.57079632679489661923, z = x * x;
    const uint64_t turn = bits_of(shifted); /* its low bits are the number of quarters */
    double c = 1.0 / 20922789888000, s = 1.0 / 355687428096000;
    c = c * z - 1.0 / 87178291200, s = s * z - 1.0 / 1307674368000;
    c = c * z + 1.0 / 479001600, s = s * z + 1.0 / 6227020800;
    c = c * z - 1.0 / 3628800, s = s * z - 1.0 / 39916800;
    c = c * z + 1.0 / 40320, s = s * z + 1.0 / 362880;
    c = c * z - 1.0 / 720, s = s * z - 1.0 / 5040;
    c = c * z + 1.0 / 24, s = s * z + 1.0 / 120;
    c = c * z - 1.0 / 2, s = s * z - 1.0 / 6;
    c = c * z + 1, s = x + x * (s * z);
    const double size = turn & 1 ? s : c;
    return (turn + 1) & 2 ? -size : size;
}

/* The Philox words of the elements of a block; philox.c computes the same, one by one. */
static inline void words_of(const Random *r, const uint64_t *index, uint32_t word[4][BLOCK])
{
    uint32_t k0 = r->key[0], k1 = r->key[1];
    for (int i = 0; i < BLOCK; i++) {
        word[0][i] = (uint32_t)index[i];
        word[1][i] = (uint32_t)(index[i] >> 32);
        word[2][i] = r->high[0];
        word[3][i] = r->high[1];
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BLOCK; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * word[0][i];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * word[2][i];
            word[0][i] = (uint32_t)(p1 >> 32) ^ word[1][i] ^ k0;
            word[2][i] = (uint32_t)(p0 >> 32) ^ word[3][i] ^ k1;
            word[1][i] = (uint32_t)p1;
            word[3][i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

WIDE static void block_of(const Random *r, const uint64_t *index, double *out)
{
    uint32_t word[4][BLOCK];
    words_of(r, index, word);
    for (int i = 0; i < BLOCK; i++) {
        const double radius = 1.0 - fraction(word[0][i], word[1][i]); /* in (0, 1]: log is finite */
        out[i] = sqrt(-2 * log_of(radius)) * cos_of_turns(fraction(word[2][i], word[3][i]));
    }
}

void random_normals(const Random *r, const uint64_t *index, int64_t n, double *out)
{
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) block_of(r, index + i, out + i);
    if (i == n) return;
    uint64_t last[BLOCK] = {0};
    double made[BLOCK];
    memcpy(last, index + i, (size_t)(n - i) * sizeof *last);
    block_of(r, last, made);
    memcpy(out + i, made, (size_t)(n - i) * sizeof *made);
}

double random_normal(const Random *r, uint64_t index)
{
    double x;
    random_normals(r, &index, 1, &x);
    return x;
}
