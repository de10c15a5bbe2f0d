/* f32.c -- products of tiles in f32; the same by words is attention_words.c.
 *
 *     s [other, owner]    = rows [other, c]         turned [c, owner]
 *     sum [owner, c]     += s' [owner, other]       rows [other, c]        gather
 *     sum [other, c]     += s [other, owner]        rows [owner, c]        spread
 *
 * Bodies are compiled twice: for the usual width of heads, where all steps are constants, and for any. */
#include "device/cpu/simd/attention/attention.h"

ALWAYS_INLINE static void score_by(Way way, const Panel *rows, const Turned *turned,
                                   const Bounds *b, Scores *s)
{
    const int64_t step = padded(way.channels);
    for (int64_t j = 0; j < SPAN; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const StridedMatrix a = {rows->at + g * SMALL_MR * step, step, 1};
            const Halves seen = halves_seen(b, g, j);
            ahead_some(way.ahead);
            const int64_t at = seen == UPPER_HALF ? j + W : j;
            float *to = &s->at[g * SMALL_MR][at];
            if (seen == BOTH_HALVES)
                small_gemm_set(way.channels, a, turned->place.at + at, SPAN, turned->factor, to,
                               SPAN);
            else if (seen != NO_HALF)
                small_gemm_set_half(way.channels, a, turned->place.at + at, SPAN, turned->factor,
                                    to, SPAN);
        }
}

ALWAYS_INLINE static void sum_by(Way way, StridedMatrix weights, const Panel *rows, const Bounds *b,
                                 float *sum)
{
    const int64_t step = padded(way.channels);
    for (int64_t j = 0; j < step; j += SMALL_NR)
        for (int g = 0; g < GROUPS; g++) {
            const int64_t from = b->from[g], n = b->to[g] - from;
            ahead_some(way.ahead);
            if (n == 0) continue;
            StridedMatrix a = weights;
            a.at += g * SMALL_MR * a.row + from * a.column;
            small_gemm_add(n, a, rows->at + from * step + j, step, sum + g * SMALL_MR * step + j,
                           step);
        }
}

void floats_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b, Scores *s)
{
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        score_by(usual, rows, turned, b, s);
    else
        score_by(way, rows, turned, b, s);
}

void floats_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum)
{
    const StridedMatrix weights = {s->at[0], 1, SPAN};
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        sum_by(usual, weights, rows, b, sum);
    else
        sum_by(way, weights, rows, b, sum);
}

void floats_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum)
{
    const StridedMatrix weights = {s->at[0], SPAN, 1};
    Way usual = way;
    usual.channels = USUAL;
    if (way.channels == USUAL)
        sum_by(usual, weights, rows, b, sum);
    else
        sum_by(way, weights, rows, b, sum);
}
