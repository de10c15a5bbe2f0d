/* forward.c -- o = softmax(scale q k') v over the keys each row sees, tile by tile.
 *
 * Scores are in units of log 2, so that weights are powers of 2. A row carries (max, sum, o) over the
 * tiles: 2^(s - max) summed, and o weighted alike. When a tile raises the max, what was summed shrinks
 * by 2^(old - new). At the end o /= sum and lse = log 2 (max + log2(sum)). Of a few queries alone:
 * attention_few.c. */
#include "device/cpu/simd/attention/forward.h"

/* Some blocks of queries share the panels of keys and values: rows of a head lie pages apart, and
 * reading them for each block cost a tenth of the time. Tiles go through NEAR tokens of one head, and then of
 * the next, whose rows lie beside them. */
enum { NEAR = 512 };

/* How a call is cut: blocks of queries of a tile, tiles of NEAR tokens of a head. It has no say in any bit. */
typedef struct {
    const Call *call;
    int64_t sides, per;
} Cut;

/* A tile's head, and the first of its blocks. */
typedef struct {
    int64_t head, block;
} Spot;

static Spot spot_of(const Cut *c, int64_t tile)
{
    const int64_t heads = c->call->in[0].n[1], group = tile / (c->per * heads);
    const int64_t rest = tile % (c->per * heads);
    return (Spot){rest / c->per, (group * c->per + rest % c->per) * c->sides};
}

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

static void store_rows(const Call *call, const Side *st, int64_t head)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    const int64_t channels = o->n[2], step = padded(channels);
    const Form form = form_of_type(o->dtype);
    float *const to = (float *)lse->data + head * lse->stride[1];
    for (int64_t i = 0; i < st->queries.n; i++) {
        /* A row that saw no key: o is 0, and its lse is -inf. */
        const float factor = st->sum[i] == 0 ? 0 : 1 / st->sum[i];
        row_write(head_row(o, st->queries.at + i, head), form, channels, factor,
                  st->o.at + i * step);
        to[(st->queries.at + i) * lse->stride[0]] =
            (float)((double)st->max[i] / LOG2_E) + logf(st->sum[i]);
    }
}

static void side_open(const Call *call, Block queries, int64_t head, State *all, Side *st)
{
    const Tensor *q = &call->in[0];
    st->queries = queries;
    if (all->way.squares)
        rows_open(all->way, q, head, st);
    else {
        panel_load(all->way, q, queries, head, &all->k);
        panel_turn(all->way, &all->k, (float)(LOG2_E * call->attr.attention.scale), &st->turned);
    }
    ranges_load(&call->in[3], call->attr.attention.key_at, key_count(call), queries, &st->ranges);
    sums_clear(st->o.at, q->n[2]);
    for (int i = 0; i < SPAN; i++) {
        st->max[i] = -HUGE_VALF;
        st->sum[i] = 0;
    }
}

/* Whether rows of v are gone. */
static bool side_add(Block keys, Sight sight, State *st, Side *side)
{
    if (st->way.squares) return rows_add(keys, sight, st, side);
    Reach reach;
    way_reach(st->way, &side->ranges, keys, sight, &reach);
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
    const Block next = block_of(st->to, keys.at / SPAN + 1);
    bool k_here = false, v_here = false;
    ahead_add(&st->ahead, v, next, source);
    ahead_add(&st->ahead, k, next, source);
    for (int i = 0; i < st->sides; i++) {
        Side *side = &st->side[i];
        const Sight sight = ranges_sight(&side->ranges, side->queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        if (!k_here) panel_load(st->way, k, keys, source, &st->k);
        if (!k_here && st->way.squares) panel_turn(st->way, &st->k, 1, &st->turned);
        if (!v_here) panel_load(st->way, v, keys, source, &st->v);
        if (!v_here) panel_pair(st->way, st->way.squares ? SPREAD : GATHER, &st->v);
        v_here = !side_add(keys, sight, st, side);
        k_here = true;
    }
}

static Block queries_of(const Cut *c, Spot spot)
{
    const int64_t n = c->call->in[0].n[0], at = least(spot.block * SPAN, n);
    return (Block){at, least(n - at, c->sides * SPAN)};
}

/* Where this tile's o goes, and what the next one reads that none has read yet, where queries and keys are the
 * same tokens. */
static void tile_ask(const Cut *c, int64_t tile, Ahead *ahead)
{
    const Tensor *in = c->call->in;
    const Spot here = spot_of(c, tile), next = spot_of(c, tile + 1);
    const Block queries = queries_of(c, next);
    const int64_t n_keys = key_count(c->call), at = least(queries.at, n_keys);
    const Block keys = {at, least(n_keys - at, queries.n)};
    for (int i = 1; i < 3 && n_keys > 0; i++)
        ahead_add(ahead, &in[i], keys, key_head(c->call, next.head));
    ahead_add(ahead, &in[0], queries, next.head);
    ahead_add(ahead, &c->call->out[0], queries_of(c, here), here.head);
}

static void sides_open(const Cut *c, Spot spot, State *st)
{
    const int64_t n = c->call->in[0].n[0];
    st->sides = (int)blocks_of(queries_of(c, spot).n, SPAN);
    st->from = key_count(c->call);
    st->to = 0;
    for (int i = 0; i < st->sides; i++) {
        side_open(c->call, block_of(n, spot.block + i), spot.head, st, &st->side[i]);
        st->from = least(st->from, st->side[i].ranges.from);
        st->to = most(st->to, st->side[i].ranges.to);
    }
}

/* One tile: some blocks of queries, a query head. */
static void attention_tile(void *work, void *room, int64_t tile)
{
    const Cut *c = work;
    const Call *call = c->call;
    const Spot spot = spot_of(c, tile);
    const int64_t n_keys = key_count(call), source = n_keys > 0 ? key_head(call, spot.head) : 0;
    State *const st = room;
    st->way = way_of(call, NULL);
    st->way.ahead = &st->ahead;
    st->ahead.n = 0;
    st->k = panel_of(st->way, st->k_place.words);
    st->v = panel_of(st->way, st->v_place.words);
    sides_open(c, spot, st);
    if (st->sides == 0) return; /* past the end of the last NEAR tokens */
    tile_ask(c, tile, &st->ahead);
    way_begin(st->way);
    for (int64_t b = st->from / SPAN; b < blocks_of(st->to, SPAN); b++)
        keys_add(call, block_of(n_keys, b), source, st);
    way_end(st->way);
    for (int i = 0; i < st->sides && st->way.squares; i++) rows_sum(&st->side[i]);
    for (int i = 0; i < st->sides; i++) store_rows(call, &st->side[i], spot.head);
}

static Err attention_tiles(const Call *call)
{
    const Tensor *q = &call->in[0];
    const int64_t threads = call->team ? team_threads(call->team) : 1;
    Cut c = {.call = call, .sides = way_of(call, NULL).squares ? MAX_SIDES : MANY_SIDES};
    while (c.sides > FEW_SIDES && blocks_of(q->n[0], c.sides * SPAN) * q->n[1] < 8 * threads)
        c.sides /= 2;
    c.per = NEAR / (c.sides * SPAN);
    const int64_t tiles = blocks_of(q->n[0], NEAR) * c.per * q->n[1];
    return thread_workspace_run(
        call->team, tiles, (ThreadWorkspaceSize){sizeof(State), "attention"}, attention_tile, &c);
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
    return attention_tiles(call);
}
