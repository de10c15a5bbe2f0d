/* attention_tile.c -- blocks of tokens as panels, and which of their pairs are seen. */
#include "device/cpu/simd/attention.h"

static int32_t within(int64_t x, int64_t end) { return (int32_t)(x < 0 ? 0 : x > end ? end : x); }

void ranges_load(const Tensor *ranges, int64_t key_at, int64_t keys, Block queries, Ranges *r)
{
    const int32_t *at = (const int32_t *)ranges->data + queries.at * ranges->stride[0];
    memset(r, 0, sizeof *r);
    for (int64_t i = 0; i < queries.n; i++, at += ranges->stride[0])
        for (int k = 0; k < 2; k++) {
            const int32_t *pair = at + 2 * k * ranges->stride[1];
            r->lo[k][i] = within(pair[0] - key_at, keys);
            r->hi[k][i] = within(pair[ranges->stride[1]] - key_at, keys);
        }
}

Sight ranges_sight(const Ranges *r, int64_t queries, Block keys)
{
    const int32_t from = (int32_t)keys.at, end = (int32_t)(keys.at + keys.n);
    int some = 0, all = keys.n == SPAN;
    for (int64_t i = 0; i < queries; i++) {
        const int32_t lo0 = r->lo[0][i], hi0 = r->hi[0][i], lo1 = r->lo[1][i], hi1 = r->hi[1][i];
        some |= (lo0 < hi0 && lo0 < end && hi0 > from) | (lo1 < hi1 && lo1 < end && hi1 > from);
        all &= (lo0 <= from && hi0 >= end) | (lo1 <= from && hi1 >= end);
    }
    return !some ? SEEN_BY_NONE : all ? SEEN_BY_ALL : SEEN_BY_SOME;
}

void panel_load(const Tensor *x, Block block, int64_t head, Panel *p)
{
    const int64_t channels = x->n[2], step = padded(channels);
    for (int64_t i = 0; i < block.n; i++) {
        const Row row = head_row(x, block.at + i, head);
        float *to = p->at + i * step;
        if (piece_is_plain(row)) {
            const float *from = (const float *)(void *)row.at;
            for (int64_t c = 0; c < channels; c += W)
                v_store(to + c, v_load_to(from + c, channels - c));
        } else if (row.dtype == BF16 && row.stride == 1 && channels % W == 0) {
            const uint16_t *from = (const uint16_t *)(void *)row.at;
            for (int64_t c = 0; c < channels; c += W) v_store(to + c, v_load_bf16(from + c));
        } else {
            load_piece(row, 0, channels, to);
        }
        for (int64_t c = channels; c < step; c++) to[c] = 0;
    }
    memset(p->at + block.n * step, 0, (size_t)((SPAN - block.n) * step) * sizeof *p->at);
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

void panel_turn(const Panel *p, int64_t channels, float factor, Panel *turned)
{
    const int64_t step = padded(channels);
    for (int64_t i0 = 0; i0 < SPAN; i0 += W)
        for (int64_t c = 0; c < channels; c++) {
            float x[W];
            for (int i = 0; i < W; i++) x[i] = p->at[(i0 + i) * step + c];
            v_store(turned->at + c * SPAN + i0, factor * v_load(x));
        }
}

static VI vi_load(const int32_t *p)
{
    VI v;
    memcpy(&v, p, sizeof v);
    return v;
}

void hide_from_lanes(const Ranges *r, Block keys, float instead, Scores s)
{
    const V hidden = v_set(instead);
    for (int i = 0; i < SPAN; i += W) {
        const VI lo0 = vi_load(&r->lo[0][i]), hi0 = vi_load(&r->hi[0][i]);
        const VI lo1 = vi_load(&r->lo[1][i]), hi1 = vi_load(&r->hi[1][i]);
        for (int j = 0; j < SPAN; j++) {
            const VI key = vi_set((int32_t)keys.at + j);
            const VI seen = ((lo0 <= key) & (key < hi0)) | ((lo1 <= key) & (key < hi1));
            v_store(&s[j][i], v_pick(seen, v_load(&s[j][i]), hidden));
        }
    }
}

void hide_lanes(const Ranges *r, Block keys, float instead, Scores s)
{
    const V hidden = v_set(instead);
    int32_t count[SPAN];
    for (int j = 0; j < SPAN; j++) count[j] = (int32_t)keys.at + j;
    for (int i = 0; i < SPAN; i++)
        for (int j = 0; j < SPAN; j += W) {
            const VI key = vi_load(&count[j]);
            const VI seen = ((key >= r->lo[0][i]) & (key < r->hi[0][i])) |
                            ((key >= r->lo[1][i]) & (key < r->hi[1][i]));
            v_store(&s[i][j], v_pick(seen, v_load(&s[i][j]), hidden));
        }
}

static bool row_is_finite(const float *row, int64_t n)
{
    V zero = {0};
    for (int64_t c = 0; c < n; c += W) zero += 0 * v_load(row + c); /* NaN, if one is not */
    const float sum = v_sum(zero);
    return sum == sum;
}

void add_wild_rows(Matrix weight, Panel *rows, int64_t channels, float *sum)
{
    const int64_t step = padded(channels);
    for (int64_t j = 0; j < SPAN; j++) {
        float *row = rows->at + j * step;
        if (row_is_finite(row, step)) continue;
        for (int64_t i = 0; i < SPAN; i++) {
            const float x = weight.at[i * weight.row + j * weight.column];
            for (int64_t c = 0; c < step && x != 0; c += W)
                v_store(sum + i * step + c, v_load(sum + i * step + c) + x * v_load(row + c));
        }
        memset(row, 0, (size_t)step * sizeof *row);
    }
}
