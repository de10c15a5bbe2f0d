/* amx.c -- the AMX path: the GEMMs of a tile by sub-tiles of 32 x 32.
 *
 *     s [other, owner]    = rows [other, c / 2]          transposed [c / 2, owner]
 *     sum' [c, owner]    += token_pairs [c, other / 2]   s [other / 2, owner]          owner
 *     sum [other, c]     += s [other, owner / 2]         token_pairs [owner / 2, c]    other
 *
 * Scores are not yet multiplied by the factor: AttentionPath.factor. AMX reads the left operand by
 * rows of pairs. The weights of an owner are stored with owners as lanes, so they can only be the
 * right operand. Therefore an owner's sums are kept transposed, [c][owner], and so are the token
 * pairs they are made from. A panel is transposed once for all tiles of its block. */
#include "device/cpu/simd/attention/bf16_dot.h"
#include "device/cpu/simd/attention/amx_gemm.h"

/* Bits of SubtileMask. Bounds are those of whole sub-tiles, so one group of each stands for all. */
static unsigned visible_subtiles(const Bounds *b)
{
    unsigned visible = 0;
    for (int g = 0; g < 2; g++)
        for (int r = 0; r < 2; r++) {
            const int group = g * SUBTILE / SMALL_MR;
            if (b->from[group] <= r * SUBTILE && b->to[group] > r * SUBTILE)
                visible |= 1u << (2 * g + r);
        }
    return visible;
}

/* Bytes of a row of BLOCK dwords, and of BLOCK / 2. */
enum { LANES_BYTES = BLOCK * 4, PAIRS_BYTES = BLOCK * 2 };

AmxGemmArgs amx_score_args(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
                           const Bounds *b, SubtileRow to)
{
    const int64_t channels = padded(path.channels);
    const unsigned visible = visible_subtiles(b) >> (2 * (to.first / SUBTILE));
    return (AmxGemmArgs){.a = rows->dwords + to.first * channels / 2,
                         .a_step = channels * 2,
                         .b = transposed->buffer.dwords,
                         .b_step = LANES_BYTES,
                         .c = to.s,
                         .c_step = LANES_BYTES,
                         .rows = 1,
                         .columns = BLOCK / SUBTILE,
                         .terms = (int)(channels / SUBTILE),
                         .mask = {visible, .column = 1},
                         .prefetch = path.prefetch};
}

void amx_score(AttentionPath path, const Panel *rows, const TransposedPanel *transposed,
               const Bounds *b, SubtileRow to)
{
    const AmxGemmArgs p = amx_score_args(path, rows, transposed, b, to);
    path.amx->multiply(&p);
}

void amx_accumulate_owner(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    const AmxGemmArgs p = {.a = rows->token_pairs,
                           .a_step = PAIRS_BYTES,
                           .b = s->other_pairs[0],
                           .b_step = LANES_BYTES,
                           .c = sum,
                           .c_step = LANES_BYTES,
                           .rows = (int)(padded(path.channels) / SUBTILE),
                           .columns = BLOCK / SUBTILE,
                           .terms = BLOCK / SUBTILE,
                           .add = true,
                           .mask = {visible_subtiles(b), .column = 2, .term = 1},
                           .prefetch = path.prefetch};
    path.amx->multiply(&p);
}

AmxGemmArgs amx_other_args(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                           float *sum)
{
    const int64_t channels = padded(path.channels);
    return (AmxGemmArgs){.a = s->owner_pairs[0],
                         .a_step = PAIRS_BYTES,
                         .b = rows->token_pairs,
                         .b_step = channels * 4,
                         .c = sum,
                         .c_step = channels * 4,
                         .rows = BLOCK / SUBTILE,
                         .columns = (int)(channels / SUBTILE),
                         .terms = BLOCK / SUBTILE,
                         .add = true,
                         .mask = {visible_subtiles(b), .row = 2, .term = 1},
                         .prefetch = path.prefetch};
}

void amx_accumulate_other(AttentionPath path, const Scores *s, const Panel *rows, const Bounds *b,
                          float *sum)
{
    const AmxGemmArgs p = amx_other_args(path, s, rows, b, sum);
    path.amx->multiply(&p);
}

void amx_transpose_pairs(int64_t channels, Panel *p)
{
    const int64_t dwords = padded(channels) / 2, tokens = BLOCK / 2;
    uint32_t pairs[BLOCK / 2][2 * W]; /* token pairs of 2 W channels */
    for (int64_t w = 0; w < dwords; w += W) {
        for (int64_t i = 0; i < tokens; i++)
            interleave_rows(p->dwords + 2 * i * dwords + w, dwords, pairs[i]);
        for (int64_t i = 0; i < tokens; i += W)
            for (int64_t c = 0; c < 2 * W; c += W)
                transpose_dwords(&pairs[i][c], 2 * W, p->token_pairs + (2 * w + c) * tokens + i,
                                 tokens);
    }
}

const float *sums_as_rows(AttentionPath path, const float *sum, float *space)
{
    const int64_t step = padded(path.channels);
    if (!path.amx) return sum;
    for (int64_t c = 0; c < step; c += W)
        for (int64_t i = 0; i < BLOCK; i += W)
            transpose_dwords(sum + c * BLOCK + i, BLOCK, space + i * step + c, step);
    return space;
}

const AmxGemm *amx_gemm_in_use(void)
{
#if defined(__AVX512F__)
    if (microkernel_in_use() == MICROKERNEL_AMX) return &amx_gemm;
    /* Pairs are made by AVX512-BF16. CPUs with AMX have it; CPUs that emulate AMX may not. */
    if (microkernel_in_use() == MICROKERNEL_AMX_EMULATED && microkernel_available(MICROKERNEL_DOT))
        return &amx_gemm_emulated;
#endif
    return NULL;
}
