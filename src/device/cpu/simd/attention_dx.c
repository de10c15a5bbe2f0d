/* attention_dx.c -- the gradient of attention, from o and lse over all keys.
 *
 *     delta = dout . o
 *     p = exp(s - lse)         ds = p (dout v' - delta) scale
 *     dq = ds k                dk = ds' q               dv = p' dout
 *
 * Two sweeps over the same tiles: dq by blocks of queries, then dk and dv by blocks of keys, so
 * that each sum has one owner and one order. A tile's p and ds are computed in both: 7 products
 * instead of 5, and no memory that grows with the sequence. */
#include "device/cpu/simd/attention.h"

typedef struct {
    const Tensor *q, *k, *v, *ranges, *dout, *lse, *o;
    float scale;
    int64_t key_at, keys, channels;
} Inputs;

static Inputs inputs_of(const Call *call)
{
    const Tensor *in = call->in;
    return (Inputs){&in[0],
                    &in[1],
                    &in[2],
                    &in[3],
                    &in[4],
                    &in[5],
                    &in[6],
                    (float)call->attr.attention.scale,
                    call->attr.attention.key_at,
                    key_count(call),
                    in[0].n[2]};
}

typedef struct {
    float lse[SPAN], delta[SPAN];
} Stats;

static float stat_of(const Tensor *t, int64_t token, int64_t head)
{
    return ((const float *)t->data)[token * t->stride[0] + head * t->stride[1]];
}

static float row_delta(const Inputs *in, int64_t token, int64_t head)
{
    float buffer[2][CHANNELS];
    const float *a = read_piece(head_row(in->dout, token, head), 0, in->channels, buffer[0]);
    const float *b = read_piece(head_row(in->o, token, head), 0, in->channels, buffer[1]);
    V sum = {0};
    for (int64_t c = 0; c < in->channels; c += W)
        sum += v_load_to(a + c, in->channels - c) * v_load_to(b + c, in->channels - c);
    return v_sum(sum);
}

/* lse is +inf for a row that saw no key at all, and for rows past the end: exp(s - lse) is 0. */
static void stats_load(const Inputs *in, Block queries, int64_t head, Stats *st)
{
    for (int64_t i = 0; i < SPAN; i++) {
        st->lse[i] = HUGE_VALF;
        st->delta[i] = 0;
        if (i >= queries.n) continue;
        const float lse = stat_of(in->lse, queries.at + i, head);
        if (lse != -HUGE_VALF) st->lse[i] = lse;
        st->delta[i] = row_delta(in, queries.at + i, head);
    }
}

/* The owner is a block of queries. s: scores, then p; dp: dout v', then ds. [key][query] */
typedef struct {
    Panel q, dout, k, v, dq; /* q, dout: turned */
    Scores s, dp;
    Ranges ranges;
    Stats stats;
} QueryState;

static void grade_lanes(QueryState *t, float scale)
{
    for (int i = 0; i < SPAN; i += W) {
        const V lse = v_load(t->stats.lse + i), delta = v_load(t->stats.delta + i);
        for (int j = 0; j < SPAN; j++) {
            const V p = v_exp(v_load(&t->s[j][i]) - lse);
            v_store(&t->dp[j][i], p * (v_load(&t->dp[j][i]) - delta) * scale);
        }
    }
}

static void keep_rows(const Tensor *x, Block block, int64_t head, float keep, const Panel *sum)
{
    for (int64_t i = 0; i < block.n; i++)
        keep_piece(head_row(x, block.at + i, head), 0, x->n[2], keep,
                   sum->at + i * padded(x->n[2]));
}

static void panel_clear(Panel *p, int64_t channels)
{
    memset(p->at, 0, (size_t)(SPAN * padded(channels)) * sizeof *p->at);
}

/* One tile: a block of queries, a query head. */
static void dq_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Inputs in = inputs_of(call);
    const int64_t blocks = blocks_of(in.q->n[0], SPAN);
    const Block queries = block_of(in.q->n[0], tile % blocks);
    const int64_t head = tile / blocks, source = in.keys > 0 ? key_head(call, head) : 0;
    QueryState t;
    panel_load(in.q, queries, head, &t.k);
    panel_turn(&t.k, in.channels, in.scale, &t.q);
    panel_load(in.dout, queries, head, &t.k);
    panel_turn(&t.k, in.channels, 1, &t.dout);
    stats_load(&in, queries, head, &t.stats);
    ranges_load(in.ranges, in.key_at, in.keys, queries, &t.ranges);
    panel_clear(&t.dq, in.channels);
    for (int64_t b = 0; b < blocks_of(in.keys, SPAN); b++) {
        const Block keys = block_of(in.keys, b);
        const Sight sight = ranges_sight(&t.ranges, queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        panel_load(in.k, keys, source, &t.k);
        panel_load(in.v, keys, source, &t.v);
        panel_fetch(in.k, block_of(in.keys, b + 1), source);
        panel_fetch(in.v, block_of(in.keys, b + 1), source);
        score(&t.k, &t.q, in.channels, t.s);
        score(&t.v, &t.dout, in.channels, t.dp);
        if (sight == SEEN_BY_SOME) hide_from_lanes(&t.ranges, keys, t.s);
        grade_lanes(&t, in.scale);
        gather(t.dp, &t.k, in.channels, &t.dq);
    }
    keep_rows(&call->out[0], queries, head, (float)call->number[0], &t.dq);
}

/* The owner is a block of keys. [query][key] */
typedef struct {
    Panel k, v, q, dout, dk, dv; /* k, v: turned */
    Scores s, dp;
    Ranges ranges;
    Stats stats;
} KeyState;

static void grade_rows(KeyState *t, float scale)
{
    for (int i = 0; i < SPAN; i++) {
        const float lse = t->stats.lse[i], delta = t->stats.delta[i];
        for (int j = 0; j < SPAN; j += W) {
            const V p = v_exp(v_load(&t->s[i][j]) - lse);
            v_store(&t->s[i][j], p);
            v_store(&t->dp[i][j], p * (v_load(&t->dp[i][j]) - delta) * scale);
        }
    }
}

/* What the queries of one head add to a block of keys. */
static void add_head(const Inputs *in, Block keys, int64_t head, KeyState *t)
{
    for (int64_t b = 0; b < blocks_of(in->q->n[0], SPAN); b++) {
        const Block queries = block_of(in->q->n[0], b);
        ranges_load(in->ranges, in->key_at, in->keys, queries, &t->ranges);
        const Sight sight = ranges_sight(&t->ranges, queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        panel_load(in->q, queries, head, &t->q);
        panel_load(in->dout, queries, head, &t->dout);
        panel_fetch(in->q, block_of(in->q->n[0], b + 1), head);
        panel_fetch(in->dout, block_of(in->q->n[0], b + 1), head);
        stats_load(in, queries, head, &t->stats);
        score(&t->q, &t->k, in->channels, t->s);
        score(&t->dout, &t->v, in->channels, t->dp);
        if (sight == SEEN_BY_SOME) hide_lanes(&t->ranges, keys, t->s);
        grade_rows(t, in->scale);
        gather(t->s, &t->dout, in->channels, &t->dv);
        gather(t->dp, &t->q, in->channels, &t->dk);
    }
}

/* One tile: a block of keys, a key head; the query heads that read it are summed in order. */
static void dkv_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Inputs in = inputs_of(call);
    const int64_t blocks = blocks_of(in.keys, SPAN);
    const int64_t head = tile / blocks;
    const Heads readers = key_readers(call, head);
    const Block keys = block_of(in.keys, tile % blocks);
    KeyState t;
    panel_load(in.k, keys, head, &t.q);
    panel_turn(&t.q, in.channels, in.scale, &t.k);
    panel_load(in.v, keys, head, &t.q);
    panel_turn(&t.q, in.channels, 1, &t.v);
    panel_clear(&t.dk, in.channels);
    panel_clear(&t.dv, in.channels);
    for (int64_t h = readers.from; h < readers.to; h++) add_head(&in, keys, h, &t);
    keep_rows(&call->out[1], keys, head, (float)call->number[1], &t.dk);
    keep_rows(&call->out[2], keys, head, (float)call->number[2], &t.dv);
}

Err CPU_NAME(attention_dx)(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    if (q->n[2] > CHANNELS) return ref_attention_dx(call); /* no model has such heads */
    ref_tiles(call, blocks_of(q->n[0], SPAN) * q->n[1], dq_tile);
    ref_tiles(call, blocks_of(k->n[0], SPAN) * k->n[1], dkv_tile);
    return OK;
}
