/* attention.c -- o = softmax(scale q k') v over the keys each row sees, tile by tile.
 *
 * Scores are in units of log 2, so that weights are powers of 2. A row carries (max, sum, o) over the
 * tiles: 2^(s - max) summed, and o weighted alike. When a tile raises the max, what was summed shrinks
 * by 2^(old - new). At the end o /= sum and lse = log 2 (max + log2(sum)). Of a few queries alone:
 * attention_few.c. */
#include "device/cpu/simd/attention.h"

/* Two blocks of queries share the panels of keys and values: rows of a head lie pages apart, and
 * reading them for each block cost a tenth of the time. */
enum { BLOCKS = 2 };

typedef struct {
    Turned turned;
    Place o;
    Ranges ranges;
    Block queries;
    float max[SPAN], sum[SPAN], shrink[SPAN];
} Side;

typedef struct {
    Way way;
    Place k_place, v_place;
    Panel k, v;
    Scores s; /* [key][query] */
    Side side[BLOCKS];
} State;

static V lanes_max(const Scores *s, int lane, Hull hull, V max)
{
    V odd = max;
    for (int j = hull.from; j < hull.to; j += 2) {
        max = v_max(max, v_load(&s->at[j][lane]));
        odd = v_max(odd, v_load(&s->at[j + 1][lane]));
    }
    return v_max(max, odd);
}

/* The weights 2^(s - base) of W lanes; their sum. */
static V lanes_weigh(Scores *s, int lane, Hull hull, V base)
{
    V sum = {0};
    for (int j = hull.from; j < hull.to; j++) {
        const V p = v_exp2(v_load(&s->at[j][lane]) - base);
        v_store(&s->at[j][lane], p);
        sum += p;
    }
    return sum;
}

/* Scores to weights, W queries at a time; what the rows hold goes to the new max. */
static void weigh(Way way, Side *st, const Bounds *queries, Scores *s)
{
    for (int i = 0; i < SPAN; i += W) {
        const Hull hull = lanes_hull(queries, i);
        const V old = v_load(st->max + i), max = lanes_max(s, i, hull, old);
        /* A row that has seen nothing yet has weights 2^(-inf - 0) = 0. */
        const V base = v_pick(max == v_set(-HUGE_VALF), v_set(0), max);
        const V shrink = v_exp2(old - base);
        const V sum = way.words ? words_weigh(s, i, hull, base) : lanes_weigh(s, i, hull, base);
        v_store(st->max + i, max);
        v_store(st->sum + i, v_load(st->sum + i) * shrink + sum);
        v_store(st->shrink + i, shrink);
    }
}

static void shrink_rows(Side *st, int64_t step)
{
    for (int i = 0; i < SPAN; i++) {
        if (st->shrink[i] == 1) continue;
        float *o = st->o.at + i * step;
        for (int64_t c = 0; c < step; c += W) v_store(o + c, st->shrink[i] * v_load(o + c));
    }
}

static void store_rows(const Call *call, Side *st, int64_t head)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    const int64_t channels = o->n[2], step = padded(channels);
    const Form form = form_of_type(o->dtype);
    for (int64_t i = 0; i < st->queries.n; i++) {
        /* A row that saw no key: o is 0, and its lse is -inf. */
        const float factor = st->sum[i] == 0 ? 0 : 1 / st->sum[i];
        row_write(head_row(o, st->queries.at + i, head), form, channels, factor,
                  st->o.at + i * step);
        tensor_set(lse, (st->queries.at + i) * o->n[1] + head,
                   (double)st->max[i] / LOG2_E + log((double)st->sum[i]));
    }
}

static void side_open(const Call *call, Block queries, int64_t head, State *all, Side *st)
{
    const Tensor *q = &call->in[0];
    st->queries = queries;
    panel_load(all->way, q, queries, head, &all->k);
    panel_turn(all->way, &all->k, (float)(LOG2_E * call->attr.attention.scale), &st->turned);
    ranges_load(&call->in[3], call->attr.attention.key_at, key_count(call), queries, &st->ranges);
    panel_fetch(&call->out[0], queries, head);
    sums_clear(st->o.at, q->n[2]);
    for (int i = 0; i < SPAN; i++) {
        st->max[i] = -HUGE_VALF;
        st->sum[i] = 0;
    }
}

/* Whether rows of v are gone. */
static bool side_add(Block keys, Sight sight, State *st, Side *side)
{
    Reach reach;
    reach_of(&side->ranges, keys, sight, &reach);
    score(st->way, &st->k, &side->turned, &reach.keys, &st->s);
    if (sight == SEEN_BY_SOME) hide_from_lanes(&side->ranges, keys, &reach.queries, &st->s);
    weigh(st->way, side, &reach.queries, &st->s);
    shrink_rows(side, padded(st->way.channels));
    return gather(st->way, &st->s, &st->v, &reach.queries, side->o.at);
}

/* One block of keys for all sides that see it. */
static void keys_add(const Call *call, Block keys, int64_t source, State *st)
{
    const Tensor *k = &call->in[1], *v = &call->in[2];
    bool k_here = false, v_here = false;
    for (int i = 0; i < BLOCKS; i++) {
        Side *side = &st->side[i];
        const Sight sight = ranges_sight(&side->ranges, side->queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        if (!k_here) panel_load(st->way, k, keys, source, &st->k);
        if (!v_here) panel_load(st->way, v, keys, source, &st->v);
        if (!v_here) panel_pair(st->way, &st->v);
        const Block next = block_of(k->n[0], keys.at / SPAN + 1);
        if (!k_here) panel_fetch(k, next, source);
        if (!v_here) panel_fetch(v, next, source);
        v_here = !side_add(keys, sight, st, side);
        k_here = true;
    }
}

/* What the next tile reads that none has read yet, where queries and keys are the same tokens. */
static void tile_fetch(const Call *call, int64_t tile)
{
    const Tensor *q = &call->in[0];
    const int64_t blocks = blocks_of(q->n[0], BLOCKS * SPAN), head = tile / blocks;
    if (head >= q->n[1]) return;
    for (int64_t b = tile % blocks * BLOCKS; b < (tile % blocks + 1) * BLOCKS; b++) {
        panel_fetch(q, block_of(q->n[0], b), head);
        for (int i = 1; i < 3 && key_count(call) > 0; i++)
            panel_fetch(&call->in[i], block_of(key_count(call), b), key_head(call, head));
    }
}

/* One tile: BLOCKS blocks of queries, a query head. */
static void attention_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0];
    /* One head after another: keys stay near. */
    const int64_t blocks = blocks_of(q->n[0], BLOCKS * SPAN), head = tile / blocks;
    const int64_t n_keys = key_count(call), source = n_keys > 0 ? key_head(call, head) : 0;
    int64_t from = n_keys, to = 0;
    State st;
    st.way = way_of(call, NULL);
    st.k = panel_of(st.way, st.k_place.words);
    st.v = panel_of(st.way, st.v_place.words);
    for (int i = 0; i < BLOCKS; i++) {
        Block queries = block_of(q->n[0], tile % blocks * BLOCKS + i);
        if (queries.n < 0) queries = (Block){q->n[0], 0};
        side_open(call, queries, head, &st, &st.side[i]);
        from = least(from, st.side[i].ranges.from);
        to = most(to, st.side[i].ranges.to);
    }
    tile_fetch(call, tile + 1);
    for (int64_t b = from / SPAN; b < blocks_of(to, SPAN); b++)
        keys_add(call, block_of(n_keys, b), source, &st);
    for (int i = 0; i < BLOCKS; i++) store_rows(call, &st.side[i], head);
}

Err CPU_NAME(attention)(const Call *call)
{
    const Tensor *q = &call->in[0];
    if (q->n[2] > CHANNELS || q->n[2] == 0)
        return ref_attention(call); /* no model has such heads */
    if (attention_is_few(call)) {
        attention_few(call);
        return OK;
    }
    ref_tiles(call, blocks_of(q->n[0], BLOCKS * SPAN) * q->n[1], attention_tile);
    return OK;
}
