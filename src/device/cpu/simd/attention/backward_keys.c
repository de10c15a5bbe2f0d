/* backward_keys.c -- the gradient of attention, seen from a block of keys: dk and dv, and where it is
 * wanted what the keys add to dq. In one sweep: attention_sweep.c. */
#include "device/cpu/simd/attention/backward.h"

static void grade_rows(const Stats *st, Block keys, const Bounds *queries, KeyState *t)
{
    const Way f32 = {.words = false};
    for (int i = 0; i < SPAN; i++) {
        const V lse = v_set(st->lse[i]), delta = v_set(st->delta[i]);
        const int from = queries->from[i / SMALL_MR], to = queries->to[i / SMALL_MR];
        for (int j = 0; j < SPAN; j += W) {
            V s = v_load(&t->s.at[i][j]), dp = v_load(&t->dp.at[i][j]);
            if (from < j + W && to > j) grade(f32, lse, delta, &s, &dp);
            if (queries->sight == SEEN_BY_SOME) {
                const VI seen = keys_seen_by(&st->ranges, i, keys_from(keys.at + j));
                s = v_pick(seen, s, v_set(0));
                dp = v_pick(seen, dp, v_set(0));
            }
            v_store(&t->s.at[i][j], s);
            v_store(&t->dp.at[i][j], dp);
        }
    }
}

static void k_load(const Inputs *in, Block keys, int64_t head, KeyState *t)
{
    t->k_rows = panel_of(in->way, t->rows.words);
    panel_load(in->way, in->k, keys, head, &t->k_rows);
    panel_pair(in->way, SPREAD, &t->k_rows);
}

/* What is asked for: where this block's gradients go to, then the next one's keys and values. */
static void keys_ask(const Call *call, const Inputs *in, Block keys, int64_t head)
{
    const Block next = block_of(in->keys, keys.at / SPAN + 1);
    ahead_add(in->way.ahead, in->v, next, head);
    ahead_add(in->way.ahead, in->k, next, head);
    ahead_add(in->way.ahead, &call->out[2], keys, head);
    ahead_add(in->way.ahead, &call->out[1], keys, head);
}

void keys_load(const Call *call, const Inputs *in, Block keys, int64_t head, KeyState *t)
{
    t->k_rows = panel_of(in->way, t->rows.words);
    panel_load(in->way, in->v, keys, head, &t->k_rows);
    panel_turn(in->way, &t->k_rows, 1, &t->v);
    k_load(in, keys, head, t);
    panel_turn(in->way, &t->k_rows, (float)(in->unit * (double)in->scale), &t->k);
    keys_ask(call, in, keys, head);
    sums_clear(t->dk.at, in->channels);
    sums_clear(t->dv.at, in->channels);
}

void queries_load(const Inputs *in, Queries *q)
{
    panel_load(in->way, in->q, q->block, q->head, &q->q);
    panel_load(in->way, in->dout, q->block, q->head, &q->dout);
    panel_pair(in->way, GATHER, &q->q);
    panel_pair(in->way, GATHER, &q->dout);
}

static void grade_tile(const Inputs *in, Block keys, const Bounds *b, const Queries *q, KeyState *t)
{
    const Graded whole = {0, SPAN, &t->s, &t->dp};
    score(in->way, &q->q, &t->k, b, &t->s);
    score(in->way, &q->dout, &t->v, b, &t->dp);
    if (in->way.words)
        words_grade(q->stats, keys, b, &whole);
    else
        grade_rows(q->stats, keys, b, t);
}

/* Rows that are not finite are gone after a tile that not all see: who reads them next is to have them. */
static void add_tile(const Inputs *in, Rows keys, const Reach *reach, Queries *q, KeyState *t)
{
    const bool whole = in->way.squares && reach->queries.sight == SEEN_BY_ALL;
    if (whole)
        strips_grade_whole(in, keys.block, &reach->queries, q, t);
    else
        (in->way.squares ? strips_grade : grade_tile)(in, keys.block, &reach->queries, q, t);
    if (q->dq && !whole && spread(in->way, &t->dp, &t->k_rows, &reach->queries, q->dq))
        k_load(in, keys.block, keys.head, t);
    const bool dout_gone = gather(in->way, &t->s, &q->dout, &reach->keys, t->dv.at);
    const bool q_gone = gather(in->way, &t->dp, &q->q, &reach->keys, t->dk.at);
    if (dout_gone || q_gone) queries_load(in, q);
}

void add_queries(const Inputs *in, Rows keys, Queries *q, KeyState *t)
{
    const Sight sight = ranges_sight(&q->stats->ranges, q->block.n, keys.block);
    Reach reach;
    if (sight == SEEN_BY_NONE) return;
    way_reach(in->way, &q->stats->ranges, keys.block, sight, &reach);
    add_tile(in, keys, &reach, q, t);
}

void keys_store(const Call *call, const Inputs *in, Block keys, int64_t head, KeyState *t)
{
    const float *const dk = sums_rows(in->way, t->dk.at, t->rows.at);
    keep_rows(&call->out[1], (Rows){keys, head, dk}, (Finish){(float)call->number[1], in->scale});
    const float *const dv = sums_rows(in->way, t->dv.at, t->rows.at);
    keep_rows(&call->out[2], (Rows){keys, head, dv}, (Finish){(float)call->number[2], 1});
}

/* Queries of one head that see the keys, or not. */
static void look_for(const Inputs *in, Rows keys, Queries *q, Stats *stats, KeyState *t)
{
    const Block next = block_of(in->q->n[0], q->block.at / SPAN + 1);
    ranges_load(in->ranges, in->key_at, in->keys, q->block, &stats->ranges);
    if (ranges_sight(&stats->ranges, q->block.n, keys.block) == SEEN_BY_NONE) return;
    stats_load(in, q->block, q->head, stats);
    queries_load(in, q);
    ahead_add(in->way.ahead, in->q, next, q->head);
    ahead_add(in->way.ahead, in->dout, next, q->head);
    add_queries(in, keys, q, t);
}

typedef struct {
    KeyState keys;
    Place q, dout;
    Stats stats;
} KeyRoom;

/* One tile: a block of keys, a key head. */
static void dkv_tile(void *work, void *room, int64_t tile)
{
    const Call *call = work;
    Inputs in = inputs_of(call);
    Ahead ahead = {.n = 0};
    const int64_t blocks = blocks_of(in.keys, SPAN), head = tile / blocks;
    const Heads readers = key_readers(call, head);
    const Rows keys = {block_of(in.keys, tile % blocks), head, NULL};
    KeyRoom *const t = room;
    Queries q = {.stats = &t->stats,
                 .q = panel_of(in.way, t->q.words),
                 .dout = panel_of(in.way, t->dout.words)};
    in.way.ahead = &ahead;
    keys_load(call, &in, keys.block, head, &t->keys);
    way_begin(in.way);
    for (q.head = readers.from; q.head < readers.to; q.head++)
        for (int64_t b = 0; b < blocks_of(in.q->n[0], SPAN); b++) {
            q.block = block_of(in.q->n[0], b);
            look_for(&in, keys, &q, &t->stats, &t->keys);
        }
    way_end(in.way);
    keys_store(call, &in, keys.block, head, &t->keys);
}

Err sweep_keys(const Call *call)
{
    const Tensor *k = &call->in[1];
    const int64_t tiles = blocks_of(k->n[0], SPAN) * k->n[1];
    const ThreadWorkspaceSize size = {sizeof(KeyRoom), "the gradient of keys"};
    return thread_workspace_run(call->team, tiles, size, dkv_tile, (void *)call);
}
