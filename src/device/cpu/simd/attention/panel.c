/* panel.c -- the choice of the kernel path; panels: loading, transposing, prefetching. */
#include "device/cpu/simd/attention/amx_gemm.h"
#include "device/cpu/microkernels.h"

AttentionPath path_of(const Call *call, const Tensor *dout)
{
    const float factor = (float)(LOG2_E * call->attr.attention.scale);
    AttentionPath path = {.channels = call->in[0].n[2], .factor = 1};
    /* Pairs need AVX-512: W is 16. */
    if (W != 16 || (dout && dout->dtype != BF16)) return path;
    for (int i = 0; i < 3; i++)
        if (call->in[i].dtype != BF16) return path;
    /* AMX takes maxima of scores before it multiplies them by the factor, so that must be > 0. */
    if (factor > 0) path.amx = amx_gemm_in_use();
    if (path.amx) path.factor = factor;
    path.bf16 = path.amx || microkernel_in_use() == MICROKERNEL_DOT;
    return path;
}

void path_tile_bounds(AttentionPath path, const Ranges *r, TokenBlock keys, Coverage coverage,
                      TileBounds *out)
{
    tile_bounds_of(r, keys, coverage, out);
    if (path.amx && coverage == PARTIAL_TILE) tile_bounds_widen(out);
}

void path_begin(AttentionPath path)
{
    if (path.amx) path.amx->begin();
}

void path_end(AttentionPath path)
{
    if (path.amx) path.amx->end();
}

static void panel_load_f32(const Tensor *x, TokenBlock block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], step = padded(channels);
    for (int64_t i = 0; i < block.n; i++) {
        const RowRef row = head_row(x, block.at + i, head);
        float *to = p->f32 + i * step;
        const float *from = row_read(row, channels, to);
        for (int64_t c = 0; c < channels && from != to; c += W)
            v_store(to + c, v_load_to(from + c, channels - c));
        for (int64_t c = channels; c < step; c++) to[c] = 0;
    }
    memset(p->f32 + block.n * step, 0, (size_t)((BLOCK - block.n) * step) * sizeof *p->f32);
}

void panel_load(AttentionPath path, const Tensor *x, TokenBlock block, int64_t head, Panel *p)
{
    if (path.bf16)
        bf16_load(x, block, head, p);
    else
        panel_load_f32(x, block, head, p);
}

void panel_pair_tokens(AttentionPath path, SumSide side, Panel *p)
{
    if (path.amx && side == SUM_OWNER)
        amx_transpose_pairs(path.channels, p);
    else if (path.bf16)
        bf16_pair_tokens(path.channels, p);
}

void panel_prefetch(const Tensor *x, TokenBlock block, int64_t head)
{
    const int64_t bytes = x->n[2] * (int64_t)dtype_bytes(x->dtype);
    if (x->stride[2] != 1) return;
    for (int64_t i = 0; i < block.n; i++) {
        const char *at = head_row(x, block.at + i, head).at;
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b, 0, 2);
    }
}

void prefetch_push(PrefetchStack *a, const Tensor *x, TokenBlock block, int64_t head)
{
    const int64_t size = (int64_t)dtype_bytes(x->dtype);
    if (x->stride[2] != 1 || block.n <= 0 || a->n == sizeof a->list / sizeof *a->list) return;
    a->list[a->n].at = head_row(x, block.at, head).at;
    a->list[a->n].step = x->stride[0] * size;
    a->list[a->n].bytes = x->n[2] * size;
    a->list[a->n++].rows = block.n;
}

#if defined(__AVX512F__)
void transpose_dwords(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512i x[W], y[W];
    for (int i = 0; i < W; i++) x[i] = _mm512_loadu_si512((const uint32_t *)from + i * from_step);
    /* Interleaves rows i and i + W / 2, four times: each moves a row index bit to the column. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < W / 2; i++) {
            y[2 * i] = _mm512_permutex2var_epi32(x[i], low, x[i + W / 2]);
            y[2 * i + 1] = _mm512_permutex2var_epi32(x[i], high, x[i + W / 2]);
        }
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < W; i++) _mm512_storeu_si512((uint32_t *)to + i * to_step, x[i]);
}
#else
void transpose_dwords(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++)
            memcpy((uint32_t *)to + j * to_step + i, (const uint32_t *)from + i * from_step + j, 4);
}
#endif

void panel_transpose(AttentionPath path, const Panel *p, float factor, TransposedPanel *transposed)
{
    /* A dword is one f32 or a pair, so bf16 rows have half as many. */
    const int64_t step = padded(path.channels) / (path.bf16 ? 2 : 1);
    transposed->factor = factor;
    for (int64_t i = 0; i < BLOCK; i += W)
        for (int64_t c = 0; c < step; c += W)
            transpose_dwords(p->dwords + i * step + c, step,
                             transposed->buffer.dwords + c * BLOCK + i, BLOCK);
}

void mask_lanes(const Ranges *r, TokenBlock keys, const Bounds *queries, Scores *s)
{
    const V masked = v_set(-HUGE_VALF);
    for (int i = 0; i < BLOCK; i += W) {
        const Hull hull = lanes_hull(queries, i);
        for (int j = hull.from; j < hull.to; j++) {
            const VI visible = queries_attending(r, i, keys.at + j);
            v_store(&s->f32[j][i], v_pick(visible, v_load(&s->f32[j][i]), masked));
        }
    }
}
