/* nonfinite.c -- rows that are not finite, in tiles that not all see whole: they are added pair by pair,
 * and left out of the product, where 0 times them would be NaN. Rare, so each channel is on its own. */
#include "device/cpu/simd/attention/attention.h"

/* NaN, if one of the words' or f32's numbers is not finite; else 0. */
static V wildness(bool words, V x)
{
    if (!words) return 0 * x;
    return 0 * (V)((VU)x << 16) + 0 * (V)((VU)x & 0xffff0000u);
}

static bool is_finite(bool words, const void *at, int64_t n)
{
    const float *x = at;
    V zero[2] = {{0}};
    for (int64_t i = 0; i < n; i += 2 * W) {
        zero[0] += wildness(words, v_load(x + i));
        zero[1] += wildness(words, v_load(x + i + W));
    }
    const float sum = v_sum(zero[0] + zero[1]);
    return sum == sum;
}

/* Steps between the tokens of the rows of a sum, or pairs of them, and between their channels; likewise of
 * the sums. */
typedef struct {
    int64_t token, channel, sum, sum_channel;
} Lie;

static Lie lie_of(Way way, Turn turn)
{
    const int64_t step = padded(way.channels);
    if (way.squares && turn == GATHER) return (Lie){1, SPAN / 2, 1, SPAN};
    return (Lie){step, 1, step, 1};
}

/* Half of a word, or all of it. */
static float number_in(Way way, uint32_t word, int64_t token)
{
    const uint32_t bits = !way.words ? word : token % 2 ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t *row_at_token(Way way, Lie lie, const Panel *p, int64_t token)
{
    return way.words ? p->pairs + token / 2 * lie.token : p->rows + token * lie.token;
}

static void row_copy(Way way, Lie lie, const Panel *p, int64_t token, float *row)
{
    const uint32_t *const from = row_at_token(way, lie, p, token);
    for (int64_t c = 0; c < padded(way.channels); c++)
        row[c] = number_in(way, from[c * lie.channel], token);
}

static void row_clear(Way way, Lie lie, Panel *p, int64_t token)
{
    const uint32_t keep = !way.words ? 0 : token % 2 ? 0xffffu : 0xffff0000u;
    uint32_t *const row = row_at_token(way, lie, p, token);
    for (int64_t c = 0; c < padded(way.channels); c++) row[c * lie.channel] &= keep;
}

/* Of sum i and row j. */
static float weight_at(Way way, Weights w, int64_t i, int64_t j)
{
    if (!way.words) return w.turn == GATHER ? w.s->at[j][i] : w.s->at[i][j];
    return number_in(way, w.turn == GATHER ? w.s->pairs[j / 2][i] : w.s->halves[i][j / 2], j);
}

bool add_wild_rows(Way way, Weights weights, Panel *rows, const Bounds *b, float *sum)
{
    const int64_t step = padded(way.channels), words = way.words ? step / 2 : step;
    const Lie lie = lie_of(way, weights.turn);
    float row[CHANNELS];
    if (is_finite(way.words, way.words ? rows->pairs : rows->rows, SPAN * words)) return false;
    for (int64_t j = 0; j < SPAN; j++) {
        row_copy(way, lie, rows, j, row);
        if (is_finite(false, row, step)) continue;
        for (int64_t i = 0; i < SPAN; i++) {
            const int group = (int)i / SMALL_MR;
            if (j < b->from[group] || j >= b->to[group]) continue;
            const float x = weight_at(way, weights, i, j);
            for (int64_t c = 0; c < step && x != 0; c++)
                sum[i * lie.sum + c * lie.sum_channel] += x * row[c];
        }
        row_clear(way, lie, rows, j);
    }
    return true;
}
