/* nonfinite.c -- rows that are not finite, in tiles that not all see whole: they are added pair by pair,
 * and left out of the product, where 0 times them would be NaN. Rare, so each channel is on its own. */
#include "device/cpu/simd/attention/attention.h"

/* NaN, if one of the words' or f32's numbers is not finite; else 0. */
static V nonfinite_probe(bool bf16, V x)
{
    if (!bf16) return 0 * x;
    return 0 * (V)((VU)x << 16) + 0 * (V)((VU)x & 0xffff0000u);
}

static bool is_finite(bool bf16, const void *at, int64_t n)
{
    const float *x = at;
    V zero[2] = {{0}};
    for (int64_t i = 0; i < n; i += 2 * W) {
        zero[0] += nonfinite_probe(bf16, v_load(x + i));
        zero[1] += nonfinite_probe(bf16, v_load(x + i + W));
    }
    const float sum = v_sum(zero[0] + zero[1]);
    return sum == sum;
}

/* Steps between the tokens of the rows of a sum, or pairs of them, and between their channels; likewise of
 * the sums. */
typedef struct {
    int64_t token, channel, sum, sum_channel;
} PanelStrides;

static PanelStrides strides_of(AttentionPath path, SumSide side)
{
    const int64_t step = padded(path.channels);
    if (path.amx && side == SUM_OWNER) return (PanelStrides){1, BLOCK / 2, 1, BLOCK};
    return (PanelStrides){step, 1, step, 1};
}

/* Half of a word, or all of it. */
static float number_in(AttentionPath path, uint32_t word, int64_t token)
{
    const uint32_t bits = !path.bf16 ? word : token % 2 ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t *row_at_token(AttentionPath path, PanelStrides strides, const Panel *p,
                              int64_t token)
{
    return path.bf16 ? p->token_pairs + token / 2 * strides.token
                     : p->dwords + token * strides.token;
}

static void row_copy(AttentionPath path, PanelStrides strides, const Panel *p, int64_t token,
                     float *row)
{
    const uint32_t *const from = row_at_token(path, strides, p, token);
    for (int64_t c = 0; c < padded(path.channels); c++)
        row[c] = number_in(path, from[c * strides.channel], token);
}

static void row_clear(AttentionPath path, PanelStrides strides, Panel *p, int64_t token)
{
    const uint32_t keep = !path.bf16 ? 0 : token % 2 ? 0xffffu : 0xffff0000u;
    uint32_t *const row = row_at_token(path, strides, p, token);
    for (int64_t c = 0; c < padded(path.channels); c++) row[c * strides.channel] &= keep;
}

/* Of sum i and row j. */
static float weight_at(AttentionPath path, TileWeights w, int64_t i, int64_t j)
{
    if (!path.bf16) return w.side == SUM_OWNER ? w.s->f32[j][i] : w.s->f32[i][j];
    return number_in(
        path, w.side == SUM_OWNER ? w.s->other_pairs[j / 2][i] : w.s->owner_pairs[i][j / 2], j);
}

bool add_nonfinite_rows(AttentionPath path, TileWeights weights, Panel *rows, const Bounds *b,
                        float *sum)
{
    const int64_t step = padded(path.channels), dwords = path.bf16 ? step / 2 : step;
    const PanelStrides strides = strides_of(path, weights.side);
    float row[MAX_CHANNELS];
    if (is_finite(path.bf16, path.bf16 ? rows->token_pairs : rows->dwords, BLOCK * dwords))
        return false;
    for (int64_t j = 0; j < BLOCK; j++) {
        row_copy(path, strides, rows, j, row);
        if (is_finite(false, row, step)) continue;
        for (int64_t i = 0; i < BLOCK; i++) {
            const int group = (int)i / SMALL_MR;
            if (j < b->from[group] || j >= b->to[group]) continue;
            const float x = weight_at(path, weights, i, j);
            for (int64_t c = 0; c < step && x != 0; c++)
                sum[i * strides.sum + c * strides.sum_channel] += x * row[c];
        }
        row_clear(path, strides, rows, j);
    }
    return true;
}
