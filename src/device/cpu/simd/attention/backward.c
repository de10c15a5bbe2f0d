/* backward.c -- the gradient of attention: one sweep or two, and dq of a block of queries;
 * attention_dx.h has the formulas, attention_keys.c the side of the keys. */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/amx_gemm.h"

static float stat_of(const Tensor *t, int64_t token, int64_t head)
{
    return ((const float *)t->data)[token * t->stride[0] + head * t->stride[1]];
}

EACH_FORM V dot_of(Form form, const void *a, const void *b, int64_t n)
{
    V sum = {0};
    for (int64_t c = 0; c < n; c += W) sum += v_load_as(form, a, c) * v_load_as(form, b, c);
    return sum;
}

/* The sum of its lanes is the row's delta. */
static V row_delta(const Inputs *in, int64_t token, int64_t head)
{
    const RowRef dout = head_row(in->dout, token, head), o = head_row(in->o, token, head);
    if (row_is_whole(dout, BF16, in->channels) && row_is_whole(o, BF16, in->channels))
        return dot_of(AS_BF16, dout.at, o.at, in->channels);
    float buffer[2][CHANNELS];
    const float *a = row_read(dout, in->channels, buffer[0]);
    const float *b = row_read(o, in->channels, buffer[1]);
    V sum = {0};
    for (int64_t c = 0; c < in->channels; c += W)
        sum += v_load_to(a + c, in->channels - c) * v_load_to(b + c, in->channels - c);
    return sum;
}

/* W rows at a time, halves folded on halves as v_sum does. */
static void deltas_load(const Inputs *in, Block queries, int64_t head, float *delta)
{
    float part[W][W], turned[W][W];
    for (int64_t at = 0; at < SPAN; at += W) {
        for (int64_t i = 0; i < W; i++)
            v_store(part[i],
                    at + i < queries.n ? row_delta(in, queries.at + at + i, head) : v_set(0));
        turn_square(part, W, turned, W);
        for (int half = W / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++)
                v_store(turned[i], v_load(turned[i]) + v_load(turned[i + half]));
        v_store(delta + at, v_load(turned[0]));
    }
}

void stats_load(const Inputs *in, Block queries, int64_t head, Stats *st)
{
    Ranges *r = &st->ranges;
    st->factor = in->way.factor;
    ranges_load(in->ranges, in->key_at, in->keys, queries, r);
    deltas_load(in, queries, head, st->delta);
    for (int64_t i = 0; i < SPAN; i++) {
        const float lse = i < queries.n ? stat_of(in->lse, queries.at + i, head) : -HUGE_VALF;
        st->lse[i] = lse == -HUGE_VALF ? HUGE_VALF : (float)(in->unit * (double)lse);
        if (lse == -HUGE_VALF) r->lo[0][i] = r->hi[0][i] = r->lo[1][i] = r->hi[1][i] = 0;
    }
    ranges_bound(r, queries.n);
}

void keep_rows(const Tensor *x, Rows rows, Finish f)
{
    const int64_t channels = x->n[2], step = padded(channels);
    const Form form = form_of_type(x->dtype);
    for (int64_t i = 0; i < rows.block.n; i++) {
        const RowRef row = head_row(x, rows.block.at + i, rows.head);
        if (f.keep == 0) /* the old content may be NaN */
            row_write(row, form, channels, f.factor, rows.sum + i * step);
        else
            row_blend(row, channels, f.keep, f.factor, rows.sum + i * step);
    }
}

/* The owner is a block of queries. dp: dout v', then ds. [key][query] */
typedef struct {
    Turned q, dout;
    Place k_place, v_place, dq;
    Panel k, v;
    Scores s, dp;
    Stats stats;
} QueryState;

static void grade_lanes(Way way, Block keys, Sight sight, QueryState *t)
{
    for (int i = 0; i < SPAN; i += W) {
        const V lse = v_load(t->stats.lse + i), delta = v_load(t->stats.delta + i);
        for (int j = 0; j < SPAN; j++) {
            V s = v_load(&t->s.at[j][i]), dp = v_load(&t->dp.at[j][i]);
            grade(way, lse, delta, &s, &dp);
            if (sight == SEEN_BY_SOME)
                dp = v_pick(queries_that_see(&t->stats.ranges, i, keys.at + j), dp, v_set(0));
            v_store(&t->dp.at[j][i], dp);
        }
    }
    if (way.words) words_round(&t->dp);
}

/* [key][query] */
static void score_tile(Way way, const Bounds *b, QueryState *t)
{
    for (int j = 0; j < SPAN && way.squares; j += SQUARE) {
        squares_score(way, &t->k, &t->q, b, (Strip){j, t->s.at[j]});
        squares_score(way, &t->v, &t->dout, b, (Strip){j, t->dp.at[j]});
    }
    if (way.squares) return;
    score(way, &t->k, &t->q, b, &t->s);
    score(way, &t->v, &t->dout, b, &t->dp);
}

/* One tile: a block of queries, a query head. */
static void dq_tile(void *work, void *room, int64_t tile)
{
    const Call *call = work;
    const Inputs in = inputs_of(call);
    const int64_t blocks = blocks_of(in.q->n[0], SPAN);
    const Block queries = block_of(in.q->n[0], tile % blocks);
    const int64_t head = tile / blocks, source = in.keys > 0 ? key_head(call, head) : 0;
    QueryState *const t = room;
    Reach reach;
    t->k = panel_of(in.way, t->k_place.words);
    t->v = panel_of(in.way, t->v_place.words);
    panel_load(in.way, in.q, queries, head, &t->k);
    panel_turn(in.way, &t->k, (float)(in.unit * (double)in.scale), &t->q);
    panel_load(in.way, in.dout, queries, head, &t->k);
    panel_turn(in.way, &t->k, 1, &t->dout);
    stats_load(&in, queries, head, &t->stats);
    sums_clear(t->dq.at, in.channels);
    way_begin(in.way);
    for (int64_t b = t->stats.ranges.from / SPAN; b < blocks_of(t->stats.ranges.to, SPAN); b++) {
        const Block keys = block_of(in.keys, b);
        const Sight sight = ranges_sight(&t->stats.ranges, queries.n, keys);
        if (sight == SEEN_BY_NONE) continue;
        panel_load(in.way, in.k, keys, source, &t->k);
        panel_pair(in.way, GATHER, &t->k);
        panel_load(in.way, in.v, keys, source, &t->v);
        panel_fetch(in.k, block_of(in.keys, b + 1), source);
        panel_fetch(in.v, block_of(in.keys, b + 1), source);
        way_reach(in.way, &t->stats.ranges, keys, sight, &reach);
        score_tile(in.way, &reach.keys, t);
        grade_lanes(in.way, keys, sight, t);
        (void)gather(in.way, &t->dp, &t->k, &reach.queries, t->dq.at);
    }
    way_end(in.way);
    keep_rows(&call->out[0], (Rows){queries, head, sums_rows(in.way, t->dq.at, t->k_place.at)},
              (Finish){(float)call->number[0], in.scale});
}

static Err sweep_queries(const Call *call)
{
    const Tensor *q = &call->in[0];
    const int64_t tiles = blocks_of(q->n[0], SPAN) * q->n[1];
    const ThreadWorkspaceSize size = {sizeof(QueryState), "the gradient of queries"};
    return thread_workspace_run(call->team, tiles, size, dq_tile, (void *)call);
}

/* As many tasks as threads, or more: a few threads sweep once. */
static bool sweeps_once(const Call *call, Sequences *s)
{
    const int threads = call->team ? team_threads(call->team) : 1;
    return sequences_find(call, s) && call->in[1].n[1] * s->n >= threads;
}

Err CPU_NAME(attention_dx)(const Call *call)
{
    const int64_t channels = call->in[0].n[2];
    Sequences s;
    if (channels > CHANNELS || channels == 0)
        return ref_attention_dx(call); /* no model has such heads */
    if (sweeps_once(call, &s)) return sweep_once(call, &s);
    TRY(sweep_queries(call));
    return sweep_keys(call);
}
