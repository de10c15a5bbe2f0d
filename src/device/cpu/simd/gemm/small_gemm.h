/* small_gemm.h -- products of small matrices that lie in the first caches.
 *
 *                        b [k, 2 W]            ROWS x 2 vectors of sums stay in registers; each
 *                       +----------+           step along k reads two vectors of b, and ROWS
 *                       |          |           numbers of a, which may lie row by row or column
 *     a [ROWS, k]       +----------+           by column
 *     +---------+       c [ROWS, 2 W]
 *     +---------+
 *
 * No packing: whoever calls has b with its columns contiguous, and all extents padded by zeros. */
#ifndef DEVICE_CPU_SIMD_GEMM_SMALL_GEMM_H
#define DEVICE_CPU_SIMD_GEMM_SMALL_GEMM_H

#include "device/cpu/simd/simd.h"

#if defined(__AVX512F__)
enum { SMALL_MR = 8 }; /* 16 of 32 registers: more than what hides the latency of two adders */
#else
enum { SMALL_MR = 4 }; /* 8 of 16 */
#endif
enum { SMALL_NR = 2 * W };

/* A matrix: element (i, j) is at[i * row + j * column]. */
typedef struct {
    const float *at;
    int64_t row, column;
} StridedMatrix;

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* sum += a b, k > 0: SMALL_MR x SMALL_NR of it. A loop that may do nothing has GCC keep the sums
 * in memory beside, which cost a tenth of small products. */
ALWAYS_INLINE static void small_gemm_sum(int64_t k, StridedMatrix a, const float *b, int64_t b_row,
                                         V sum[SMALL_MR][2])
{
    do {
        const V b0 = v_load(b), b1 = v_load(b + W);
        for (int i = 0; i < SMALL_MR; i++) {
            sum[i][0] += a.at[i * a.row] * b0;
            sum[i][1] += a.at[i * a.row] * b1;
        }
        a.at += a.column;
        b += b_row;
    } while (--k > 0);
}

/* c = factor * a b. */
ALWAYS_INLINE static void small_gemm_set(int64_t k, StridedMatrix a, const float *b, int64_t b_row,
                                         float factor, float *c, int64_t c_row)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) sum[i][0] = sum[i][1] = v_set(0);
    small_gemm_sum(k, a, b, b_row, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * c_row, factor * sum[i][0]);
        v_store(c + i * c_row + W, factor * sum[i][1]);
    }
}

/* The same of W columns. */
ALWAYS_INLINE static void small_gemm_set_half(int64_t k, StridedMatrix a, const float *b,
                                              int64_t b_row, float factor, float *c, int64_t c_row)
{
    V sum[SMALL_MR];
    for (int i = 0; i < SMALL_MR; i++) sum[i] = v_set(0);
    do {
        const V b0 = v_load(b);
        for (int i = 0; i < SMALL_MR; i++) sum[i] += a.at[i * a.row] * b0;
        a.at += a.column;
        b += b_row;
    } while (--k > 0);
    for (int i = 0; i < SMALL_MR; i++) v_store(c + i * c_row, factor * sum[i]);
}

/* c += a b. */
ALWAYS_INLINE static void small_gemm_add(int64_t k, StridedMatrix a, const float *b, int64_t b_row,
                                         float *c, int64_t c_row)
{
    V sum[SMALL_MR][2];
    for (int i = 0; i < SMALL_MR; i++) {
        sum[i][0] = v_load(c + i * c_row);
        sum[i][1] = v_load(c + i * c_row + W);
    }
    small_gemm_sum(k, a, b, b_row, sum);
    for (int i = 0; i < SMALL_MR; i++) {
        v_store(c + i * c_row, sum[i][0]);
        v_store(c + i * c_row + W, sum[i][1]);
    }
}

static inline int64_t pad_to(int64_t n, int64_t step) { return blocks_of(n, step) * step; }

#endif
