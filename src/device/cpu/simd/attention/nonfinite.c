/* nonfinite.c -- rows that are not finite, in partial tiles. They are added pair by pair and left
 * out of the GEMM, where a weight of 0 times NaN or infinity would be NaN. Such rows are rare, so
 * the loops are scalar. */
#include "device/cpu/simd/attention/attention.h"

/* Returns NaN in lanes whose f32, or one of whose two bf16, is not finite; else 0. */
static V nonfinite_probe(bool bf16, V x)
{
    if (!bf16) return 0 * x;
    return 0 * (V)((VU)x << 16) + 0 * (V)((VU)x & 0xffff0000u);
}

/* 0 * x is NaN exactly for infinities and NaN, and NaN survives the sum. */
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

/* Strides in dwords: between tokens (or pairs of tokens) and channels of the panel, and between
 * tokens and channels of the sums. */
typedef struct {
    int64_t token, channel, sum, sum_channel;
} PanelStrides;

static PanelStrides strides_of(AttentionPath path, SumSide side)
{
    const int64_t step = padded(path.channels);
    if (path.amx && side == SUM_OWNER) return (PanelStrides){1, BLOCK / 2, 1, BLOCK};
    return (PanelStrides){step, 1, step, 1};
}

/* The element of a token in a dword: all of it, or one bf16 of a pair. */
static float number_in(AttentionPath path, uint32_t dword, int64_t token)
{
    const uint32_t bits = !path.bf16 ? dword : token % 2 ? dword & 0xffff0000u : dword << 16;
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

/* The weight of row j in sum i. */
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
