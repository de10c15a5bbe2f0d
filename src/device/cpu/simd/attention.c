/* attention.c -- o = softmax(scale q k') v over the keys each row sees, tile by tile.
 *
 * A row carries (max, sum, o) over the tiles: exp(s - max) summed, and o weighted alike. When a
 * tile raises the max, what was summed shrinks by exp(old - new). At the end o /= sum and
 * lse = max + log(sum). Of a few queries alone: attention_few.c. */
#include "device/cpu/simd/attention.h"

typedef struct {
    Panel turned, rows, o; /* rows: of keys, then of values */
    Scores s;              /* [key][query] */
    Ranges ranges;
    float max[SPAN], sum[SPAN], shrink[SPAN];
} State;

/* Scores to weights exp(s - max), W queries at a time; what the rows hold goes to the new max. */
static void weigh(State *st)
{
    for (int i = 0; i < SPAN; i += W) {
        const V old = v_load(st->max + i);
        V max = old, sum = v_load(st->sum + i);
        for (int j = 0; j < SPAN; j++) max = v_max(max, v_load(&st->s[j][i]));
        /* A row that has seen nothing yet has weights exp(-inf - 0) = 0. */
        const V base = v_pick(max == v_set(-HUGE_VALF), v_set(0), max);
        const V shrink = v_exp(old - base);
        sum *= shrink;
        for (int j = 0; j < SPAN; j++) {
            const V p = v_exp(v_load(&st->s[j][i]) - base);
            v_store(&st->s[j][i], p);
            sum += p;
        }
        v_store(st->max + i, max);
        v_store(st->sum + i, sum);
        v_store(st->shrink + i, shrink);
    }
}

static void shrink_rows(State *st, int64_t step)
{
    for (int i = 0; i < SPAN; i++) {
        if (st->shrink[i] == 1) continue;
        float *o = st->o.at + i * step;
        for (int64_t c = 0; c < step; c += W) v_store(o + c, st->shrink[i] * v_load(o + c));
    }
}

static void store_rows(const Call *call, State *st, Block queries, int64_t head)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    const int64_t channels = o->n[2], step = padded(channels);
    for (int64_t i = 0; i < queries.n; i++) {
        /* A row that saw no key: o is 0, and its lse is -inf. */
        const float factor = st->sum[i] == 0 ? 0 : 1 / st->sum[i];
        float *row = st->o.at + i * step;
        for (int64_t c = 0; c < step; c += W) v_store(row + c, factor * v_load(row + c));
        store_piece(head_row(o, queries.at + i, head), 0, channels, row);
        tensor_set(lse, (queries.at + i) * o->n[1] + head,
                   (double)st->max[i] + log((double)st->sum[i]));
    }
}

/* One tile: a block of queries, a query head. */
static void attention_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    const int64_t blocks = blocks_of(q->n[0], SPAN); /* one head after another: keys stay near */
    const Block queries = block_of(q->n[0], tile % blocks);
    const int64_t head = tile / blocks, channels = q->n[2];
    const int64_t n_keys = key_count(call), source = n_keys > 0 ? key_head(call, head) : 0;
    State st;
    panel_load(q, queries, head, &st.rows);
    panel_turn(&st.rows, channels, (float)call->attr.attention.scale, &st.turned);
    ranges_load(&call->in[3], call->attr.attention.key_at, n_keys, queries, &st.ranges);
    memset(st.o.at, 0, (size_t)(SPAN * padded(channels)) * sizeof *st.o.at);
    for (int i = 0; i < SPAN; i++) {
        st.max[i] = -HUGE_VALF;
        st.sum[i] = 0;
    }
    for (int64_t b = 0; b < blocks_of(n_keys, SPAN); b++) {
        const Block keys = block_of(n_keys, b);
        const Sight sight = ranges_sight(&st.ranges, queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        panel_load(k, keys, source, &st.rows);
        panel_fetch(v, keys, source);
        score(&st.rows, &st.turned, channels, st.s);
        if (sight == SEEN_BY_SOME) hide_from_lanes(&st.ranges, keys, -HUGE_VALF, st.s);
        weigh(&st);
        shrink_rows(&st, padded(channels));
        panel_load(v, keys, source, &st.rows);
        panel_fetch(k, block_of(n_keys, b + 1), source);
        gather(st.s, &st.rows, channels, sight, &st.o);
    }
    store_rows(call, &st, queries, head);
}

Err CPU_NAME(attention)(const Call *call)
{
    const Tensor *q = &call->in[0];
    if (q->n[2] > CHANNELS) return ref_attention(call); /* no model has such heads */
    if (attention_is_few(call)) {
        attention_few(call);
        return OK;
    }
    ref_tiles(call, blocks_of(q->n[0], SPAN) * q->n[1], attention_tile);
    return OK;
}
