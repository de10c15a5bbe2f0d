/* amx.c -- products of tiles of bf16 by squares; the same by words is attention_words.c.
 *
 *     s [other, owner]    = rows [other, c / 2]         turned [c / 2, owner]      not yet by the factor
 *     sum' [c, owner]    += turned [c, other / 2]       s [other / 2, owner]       gather
 *     sum [other, c]     += s [other, owner / 2]        pairs [owner / 2, c]       spread
 *
 * The left factor of a product is read row by row, so weights, which are made with the owners as lanes, are
 * the right one where sums are the owners': those are turned, [c][owner], and so are the rows they are of.
 * Rows are turned once for all tiles of their block. */
#include "device/cpu/simd/attention/bf16_dot.h"
#include "device/cpu/simd/attention/amx_gemm.h"

static unsigned seen_in(const Bounds *b)
{
    unsigned seen = 0;
    for (int g = 0; g < 2; g++)
        for (int r = 0; r < 2; r++) {
            const int group = g * SQUARE / SMALL_MR;
            if (b->from[group] <= r * SQUARE && b->to[group] > r * SQUARE)
                seen |= 1u << (2 * g + r);
        }
    return seen;
}

enum { LANES_STEP = SPAN * 4, HALVES_STEP = SPAN * 2 }; /* bytes of a row of words */

SquareProduct score_product(Way way, const Panel *rows, const Turned *turned, const Bounds *b,
                            Strip strip)
{
    const int64_t channels = padded(way.channels);
    const unsigned seen = seen_in(b) >> (2 * (strip.other / SQUARE));
    return (SquareProduct){.a = rows->rows + strip.other * channels / 2,
                           .a_step = channels * 2,
                           .b = turned->place.words,
                           .b_step = LANES_STEP,
                           .c = strip.s,
                           .c_step = LANES_STEP,
                           .rows = 1,
                           .columns = SPAN / SQUARE,
                           .terms = (int)(channels / SQUARE),
                           .sight = {seen, .column = 1},
                           .ahead = way.ahead};
}

void squares_score(Way way, const Panel *rows, const Turned *turned, const Bounds *b, Strip strip)
{
    const SquareProduct p = score_product(way, rows, turned, b, strip);
    way.squares->multiply(&p);
}

void squares_gather(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum)
{
    const SquareProduct p = {.a = rows->pairs,
                             .a_step = HALVES_STEP,
                             .b = s->pairs[0],
                             .b_step = LANES_STEP,
                             .c = sum,
                             .c_step = LANES_STEP,
                             .rows = (int)(padded(way.channels) / SQUARE),
                             .columns = SPAN / SQUARE,
                             .terms = SPAN / SQUARE,
                             .add = true,
                             .sight = {seen_in(b), .column = 2, .term = 1},
                             .ahead = way.ahead};
    way.squares->multiply(&p);
}

SquareProduct spread_product(Way way, const Scores *s, const Panel *rows, const Bounds *b,
                             float *sum)
{
    const int64_t channels = padded(way.channels);
    return (SquareProduct){.a = s->halves[0],
                           .a_step = HALVES_STEP,
                           .b = rows->pairs,
                           .b_step = channels * 4,
                           .c = sum,
                           .c_step = channels * 4,
                           .rows = SPAN / SQUARE,
                           .columns = (int)(channels / SQUARE),
                           .terms = SPAN / SQUARE,
                           .add = true,
                           .sight = {seen_in(b), .row = 2, .term = 1},
                           .ahead = way.ahead};
}

void squares_spread(Way way, const Scores *s, const Panel *rows, const Bounds *b, float *sum)
{
    const SquareProduct p = spread_product(way, s, rows, b, sum);
    way.squares->multiply(&p);
}

void squares_turn(int64_t channels, Panel *p)
{
    const int64_t words = padded(channels) / 2, tokens = SPAN / 2;
    uint32_t strip[SPAN / 2][2 * W]; /* pairs of tokens, of as many channels */
    for (int64_t w = 0; w < words; w += W) {
        for (int64_t i = 0; i < tokens; i++)
            pair_words(p->rows + 2 * i * words + w, words, strip[i]);
        for (int64_t i = 0; i < tokens; i += W)
            for (int64_t c = 0; c < 2 * W; c += W)
                turn_square(&strip[i][c], 2 * W, p->pairs + (2 * w + c) * tokens + i, tokens);
    }
}

const float *sums_rows(Way way, const float *sum, float *room)
{
    const int64_t step = padded(way.channels);
    if (!way.squares) return sum;
    for (int64_t c = 0; c < step; c += W)
        for (int64_t i = 0; i < SPAN; i += W)
            turn_square(sum + c * SPAN + i, SPAN, room + i * step + c, step);
    return room;
}

const Squares *squares_in_use(void)
{
#if defined(__AVX512F__)
    if (microkernel_in_use() == MICROKERNEL_AMX) return &squares_by_tiles;
    /* Words are made by instructions of AVX512-BF16, which CPUs that have AMX have. */
    if (microkernel_in_use() == MICROKERNEL_AMX_EMULATED && microkernel_available(MICROKERNEL_DOT))
        return &squares_in_c;
#endif
    return NULL;
}
