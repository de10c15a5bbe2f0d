/* panel.c -- blocks of tokens as panels, and how their products are done. */
#include "device/cpu/simd/attention/amx_gemm.h"
#include "device/cpu/microkernels.h"

Way way_of(const Call *call, const Tensor *dout)
{
    const float factor = (float)(LOG2_E * call->attr.attention.scale);
    Way way = {.channels = call->in[0].n[2], .factor = 1};
    if (W != 16 || (dout && dout->dtype != BF16)) return way;
    for (int i = 0; i < 3; i++)
        if (call->in[i].dtype != BF16) return way;
    if (factor > 0) way.squares = squares_in_use(); /* maxima are found before the factor */
    if (way.squares) way.factor = factor;
    way.words = way.squares || microkernel_in_use() == MICROKERNEL_DOT;
    return way;
}

void way_reach(Way way, const Ranges *r, Block keys, Sight sight, Reach *out)
{
    reach_of(r, keys, sight, out);
    if (way.squares && sight == SEEN_BY_SOME) reach_widen(out);
}

void way_begin(Way way)
{
    if (way.squares) way.squares->begin();
}

void way_end(Way way)
{
    if (way.squares) way.squares->end();
}

static void panel_load_f32(const Tensor *x, Block block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], step = padded(channels);
    for (int64_t i = 0; i < block.n; i++) {
        const RowRef row = head_row(x, block.at + i, head);
        float *to = p->at + i * step;
        const float *from = row_read(row, channels, to);
        for (int64_t c = 0; c < channels && from != to; c += W)
            v_store(to + c, v_load_to(from + c, channels - c));
        for (int64_t c = channels; c < step; c++) to[c] = 0;
    }
    memset(p->at + block.n * step, 0, (size_t)((SPAN - block.n) * step) * sizeof *p->at);
}

void panel_load(Way way, const Tensor *x, Block block, int64_t head, Panel *p)
{
    if (way.words)
        words_load(x, block, head, p);
    else
        panel_load_f32(x, block, head, p);
}

void panel_pair(Way way, Turn turn, Panel *p)
{
    if (way.squares && turn == GATHER)
        squares_turn(way.channels, p);
    else if (way.words)
        words_pair(way.channels, p);
}

void panel_fetch(const Tensor *x, Block block, int64_t head)
{
    const int64_t bytes = x->n[2] * (int64_t)dtype_bytes(x->dtype);
    if (x->stride[2] != 1) return;
    for (int64_t i = 0; i < block.n; i++) {
        const char *at = head_row(x, block.at + i, head).at;
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b, 0, 2);
    }
}

void ahead_add(Ahead *a, const Tensor *x, Block block, int64_t head)
{
    const int64_t size = (int64_t)dtype_bytes(x->dtype);
    if (x->stride[2] != 1 || block.n <= 0 || a->n == sizeof a->list / sizeof *a->list) return;
    a->list[a->n].at = head_row(x, block.at, head).at;
    a->list[a->n].step = x->stride[0] * size;
    a->list[a->n].bytes = x->n[2] * size;
    a->list[a->n++].rows = block.n;
}

#if defined(__AVX512F__)
void turn_square(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    __m512i x[W], y[W];
    for (int i = 0; i < W; i++) x[i] = _mm512_loadu_si512((const uint32_t *)from + i * from_step);
    /* Rows i and i + W / 2 are interleaved, four times: each moves a bit of the row's number to the
     * column's. */
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < W / 2; i++) {
            y[2 * i] = _mm512_permutex2var_epi32(x[i], low, x[i + W / 2]);
            y[2 * i + 1] = _mm512_permutex2var_epi32(x[i], high, x[i + W / 2]);
        }
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < W; i++) _mm512_storeu_si512((uint32_t *)to + i * to_step, x[i]);
}
#else
void turn_square(const void *from, int64_t from_step, void *to, int64_t to_step)
{
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++)
            memcpy((uint32_t *)to + j * to_step + i, (const uint32_t *)from + i * from_step + j, 4);
}
#endif

void panel_turn(Way way, const Panel *p, float factor, Turned *turned)
{
    /* f32 and words are both 32 bits wide; there are half as many words. */
    const int64_t step = padded(way.channels) / (way.words ? 2 : 1);
    turned->factor = factor;
    for (int64_t i = 0; i < SPAN; i += W)
        for (int64_t c = 0; c < step; c += W)
            turn_square(p->rows + i * step + c, step, turned->place.words + c * SPAN + i, SPAN);
}

void hide_from_lanes(const Ranges *r, Block keys, const Bounds *queries, Scores *s)
{
    const V hidden = v_set(-HUGE_VALF);
    for (int i = 0; i < SPAN; i += W) {
        const Hull hull = lanes_hull(queries, i);
        for (int j = hull.from; j < hull.to; j++) {
            const VI seen = queries_that_see(r, i, keys.at + j);
            v_store(&s->at[j][i], v_pick(seen, v_load(&s->at[j][i]), hidden));
        }
    }
}
