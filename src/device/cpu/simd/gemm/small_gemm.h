/* small_gemm.h -- GEMM of small f32 matrices that are in L1 or L2, without packing.
 *
 *                        B [k, 2 W]            SMALL_MR x 2 vectors of sums stay in registers. Each
 *                       +----------+           step along k reads two vectors of B and SMALL_MR
 *                       |          |           elements of A, which may be stored by rows or by
 *     A [SMALL_MR, k]   +----------+           columns.
 *     +---------+       C [SMALL_MR, 2 W]
 *     +---------+
 *
 * The caller provides B with contiguous rows, and all extents padded with zeros. */
#ifndef DEVICE_CPU_SIMD_GEMM_SMALL_GEMM_H
#define DEVICE_CPU_SIMD_GEMM_SMALL_GEMM_H

#include "device/cpu/simd/simd.h"

#if defined(__AVX512F__)
enum { SMALL_MR = 8 }; /* 16 sums: enough to hide the latency of two FMA ports */
#else
enum { SMALL_MR = 4 }; /* 8 sums of 16 registers */
#endif
enum { SMALL_NR = 2 * W };

/* Element (i, j) is at[i * row + j * column]. */
typedef struct {
    const float *at;
    int64_t row, column;
} StridedMatrix;

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* sum += a b, SMALL_MR x SMALL_NR of it; k > 0. A loop that may run zero times makes GCC keep a
 * copy of the sums in memory, which costs 10% of small GEMMs. */
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

/* c = factor * a b, for W columns. */
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
