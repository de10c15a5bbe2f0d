/* tile_gemm_body.h -- the GEMMs of a tile by vector instructions, for f32.c and bf16_dot.c.
 *
 *     s [other, owner]   = rows [other, c]         transposed [c, owner]     tile_score
 *     sum [token, c]    += weights [token, k]      rows [k, c]               tile_accumulate
 *
 * The including file defines these macros first:
 *
 *     GEMM_TERMS       terms of the inner product in a dword: 1 (f32) or 2 (a VNNI pair)
 *     GEMM_DWORD       type of a dword: float or uint32_t
 *     GEMM_MATRIX      strided matrix of dwords: {at, row, column}
 *     GEMM_TARGET      function attribute of the instructions
 *     GEMM_SET, GEMM_SET_HALF, GEMM_ADD     functions with the arguments of small_gemm_set etc.
 *
 * Both loops go over groups of SMALL_MR rows of the result, and skip whatever the Bounds of a group
 * exclude. Each call of a GEMM_ function is followed by one step of the prefetches. */
#include "device/cpu/simd/attention/attention.h"

ALWAYS_INLINE GEMM_TARGET static void score_channels(AttentionPath path, const GEMM_DWORD *rows,
                                                     const GEMM_DWORD *transposed, float factor,
                                                     const Bounds *b, Scores *s)
{
    const int64_t step = padded(path.channels) / GEMM_TERMS;
    const int64_t k = blocks_of(path.channels, GEMM_TERMS);
    for (int64_t j = 0; j < BLOCK; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const GEMM_MATRIX a = {rows + g * SMALL_MR * step, step, 1};
            const Halves needed = halves_needed(b, g, j);
            prefetch_step(path.prefetch);
            const int64_t at = needed == UPPER_HALF ? j + W : j;
            float *to = &s->f32[g * SMALL_MR][at];
            if (needed == BOTH_HALVES)
                GEMM_SET(k, a, transposed + at, BLOCK, factor, to, BLOCK);
            else if (needed != NO_HALF)
                GEMM_SET_HALF(k, a, transposed + at, BLOCK, factor, to, BLOCK);
        }
}

ALWAYS_INLINE GEMM_TARGET static void accumulate_channels(AttentionPath path, GEMM_MATRIX weights,
                                                          const GEMM_DWORD *rows, const Bounds *b,
                                                          float *sum)
{
    const int64_t step = padded(path.channels);
    for (int64_t j = 0; j < step; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            /* Bounds are whole pairs, so the division is exact. */
            const int64_t from = b->from[g] / GEMM_TERMS, n = b->to[g] / GEMM_TERMS - from;
            prefetch_step(path.prefetch);
            if (n == 0) continue;
            GEMM_MATRIX a = weights;
            a.at += g * SMALL_MR * a.row + from * a.column;
            GEMM_ADD(n, a, rows + from * step + j, step, sum + g * SMALL_MR * step + j, step);
        }
}

/* Both loops are compiled twice: for COMMON_CHANNELS, where all strides are constants, and for any
 * number of channels. */
ALWAYS_INLINE GEMM_TARGET static void tile_score(AttentionPath path, const GEMM_DWORD *rows,
                                                 const GEMM_DWORD *transposed, float factor,
                                                 const Bounds *b, Scores *s)
{
    AttentionPath common = path;
    common.channels = COMMON_CHANNELS;
    if (path.channels == COMMON_CHANNELS)
        score_channels(common, rows, transposed, factor, b, s);
    else
        score_channels(path, rows, transposed, factor, b, s);
}

ALWAYS_INLINE GEMM_TARGET static void tile_accumulate(AttentionPath path, GEMM_MATRIX weights,
                                                      const GEMM_DWORD *rows, const Bounds *b,
                                                      float *sum)
{
    AttentionPath common = path;
    common.channels = COMMON_CHANNELS;
    if (path.channels == COMMON_CHANNELS)
        accumulate_channels(common, weights, rows, b, sum);
    else
        accumulate_channels(path, weights, rows, b, sum);
}
