/* f32.c -- products of tiles in f32; the same by words is attention_words.c.
 *
 *     s [other, owner]    = rows [other, c]         turned [c, owner]
 *     sum [owner, c]     += s' [owner, other]       rows [other, c]        gather
 *     sum [other, c]     += s [other, owner]        rows [owner, c]        spread
 *
 * Bodies are compiled twice: for the usual width of heads, where all steps are constants, and for any. */
#include "device/cpu/simd/attention/attention.h"

ALWAYS_INLINE static void score_by(AttentionPath path, const Panel *rows,
                                   const TransposedPanel *transposed, const Bounds *b, Scores *s)
{
    const int64_t step = padded(path.channels);
    for (int64_t j = 0; j < BLOCK; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const StridedMatrix a = {rows->f32 + g * SMALL_MR * step, step, 1};
            const Halves needed = halves_needed(b, g, j);
            prefetch_step(path.prefetch);
            const int64_t at = needed == UPPER_HALF ? j + W : j;
            float *to = &s->f32[g * SMALL_MR][at];
            if (needed == BOTH_HALVES)
                small_gemm_set(path.channels, a, transposed->buffer.f32 + at, BLOCK,
                               transposed->factor, to, BLOCK);
            else if (needed != NO_HALF)
                small_gemm_set_half(path.channels, a, transposed->buffer.f32 + at, BLOCK,
                                    transposed->factor, to, BLOCK);
        }
}

ALWAYS_INLINE static void sum_by(AttentionPath path, StridedMatrix weights, const Panel *rows,
                                 const Bounds *b, float *sum)
{
    const int64_t step = padded(path.channels);
    for (int64_t j = 0; j < step; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const int64_t from = b->from[g], n = b->to[g] - from;
            prefetch_step(path.prefetch);
            if (n == 0) continue;
            StridedMatrix a = weights;
            a.at += g * SMALL_MR * a.row + from * a.column;
            small_gemm_add(n, a, rows->f32 + from * step + j, step, sum + g * SMALL_MR * step + j,
                           step);
        }
}

void f32_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, Scores *s)
{
    AttentionPath common = path;
    common.channels = COMMON_CHANNELS;
    if (path.channels == COMMON_CHANNELS)
        score_by(common, rows, transposed, b, s);
    else
        score_by(path, rows, transposed, b, s);
}

void f32_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    const StridedMatrix weights = {s->f32[0], 1, BLOCK};
    AttentionPath common = path;
    common.channels = COMMON_CHANNELS;
    if (path.channels == COMMON_CHANNELS)
        sum_by(common, weights, rows, b, sum);
    else
        sum_by(path, weights, rows, b, sum);
}

void f32_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    const StridedMatrix weights = {s->f32[0], BLOCK, 1};
    AttentionPath common = path;
    common.channels = COMMON_CHANNELS;
    if (path.channels == COMMON_CHANNELS)
        sum_by(common, weights, rows, b, sum);
    else
        sum_by(path, weights, rows, b, sum);
}
