/* attention_keys.c -- the gradient of attention, seen from a block of keys: dk and dv, and in one
 * sweep dq too.
 *
 *            queries ->
 *     keys   [ k0 ]  [tile][tile][tile]      a task of one sweep: the keys of a sequence, one block
 *            [ k1 ]        [tile][tile]      after another; dq of all its queries waits in the
 *            [ k2 ]              [tile]      task's room, and is stored at the end
 *                      dq    dq    dq */
#include "device/cpu/simd/attention_dx.h"

/* s: scores, then p; dp: dout v', then ds. [query][key] */
typedef struct {
    Turned k, v;
    Panel k_rows, q, dout, dk, dv;
    Scores s, dp;
    Stats stats;
} KeyState;

static void grade_rows(const Stats *st, Block keys, const Bounds *queries, KeyState *t)
{
    const Way f32 = {.words = false};
    for (int i = 0; i < SPAN; i++) {
        const V lse = v_set(st->lse[i]), delta = v_set(st->delta[i]);
        const int from = queries->from[i / MICRO_ROWS], to = queries->to[i / MICRO_ROWS];
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

/* What is fetched: the next block's keys and values, and where this one's gradients go to. */
static void keys_load(const Call *call, const Inputs *in, Block keys, int64_t head, KeyState *t)
{
    const Block next = block_of(in->keys, keys.at / SPAN + 1);
    panel_load(in->way, in->v, keys, head, &t->k_rows);
    panel_turn(in->way, &t->k_rows, 1, &t->v);
    panel_load(in->way, in->k, keys, head, &t->k_rows);
    panel_turn(in->way, &t->k_rows, (float)(in->unit * (double)in->scale), &t->k);
    panel_pair(in->way, &t->k_rows);
    panel_fetch(in->v, next, head);
    panel_fetch(in->k, next, head);
    panel_fetch(&call->out[1], keys, head);
    panel_fetch(&call->out[2], keys, head);
    panel_clear(&t->dk, in->channels);
    panel_clear(&t->dv, in->channels);
}

/* What a block of queries of one head adds to the keys, and where there is a dq what the keys add
 * to it. st NULL: they are loaded where the tile is seen. */
static void add_queries(const Inputs *in, Block keys, Rows queries, const Stats *st, KeyState *t)
{
    if (!st) {
        st = &t->stats;
        ranges_load(in->ranges, in->key_at, in->keys, queries.block, &t->stats.ranges);
        if (ranges_sight(&st->ranges, queries.block.n, keys) == SEEN_BY_NONE) return;
        stats_load(in, queries.block, queries.head, &t->stats);
    }
    const Sight sight = ranges_sight(&st->ranges, queries.block.n, keys);
    if (sight == SEEN_BY_NONE) return;
    panel_load(in->way, in->q, queries.block, queries.head, &t->q);
    panel_load(in->way, in->dout, queries.block, queries.head, &t->dout);
    panel_pair(in->way, &t->q);
    panel_pair(in->way, &t->dout);
    const Block next = block_of(in->q->n[0], queries.block.at / SPAN + 1);
    panel_fetch(in->q, next, queries.head);
    panel_fetch(in->dout, next, queries.head);
    Reach reach;
    reach_of(&st->ranges, keys, sight, &reach);
    score(in->way, &t->q, &t->k, &reach.queries, &t->s);
    score(in->way, &t->dout, &t->v, &reach.queries, &t->dp);
    if (in->way.words)
        words_grade(st, keys, &reach.queries, &t->s, &t->dp);
    else
        grade_rows(st, keys, &reach.queries, t);
    if (queries.sum) spread(in->way, &t->dp, &t->k_rows, &reach.queries, queries.sum);
    gather(in->way, &t->s, &t->dout, &reach.keys, t->dv.at);
    gather(in->way, &t->dp, &t->q, &reach.keys, t->dk.at);
}

static void keys_store(const Call *call, Block keys, int64_t head, KeyState *t)
{
    const float scale = (float)call->attr.attention.scale;
    keep_rows(&call->out[1], (Rows){keys, head, t->dk.at}, (Finish){(float)call->number[1], scale});
    keep_rows(&call->out[2], (Rows){keys, head, t->dv.at}, (Finish){(float)call->number[2], 1});
}

void dkv_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Inputs in = inputs_of(call);
    const int64_t blocks = blocks_of(in.keys, SPAN), head = tile / blocks;
    const Heads readers = key_readers(call, head);
    const Block keys = block_of(in.keys, tile % blocks);
    KeyState t;
    keys_load(call, &in, keys, head, &t);
    for (int64_t h = readers.from; h < readers.to; h++)
        for (int64_t b = 0; b < blocks_of(in.q->n[0], SPAN); b++)
            add_queries(&in, keys, (Rows){block_of(in.q->n[0], b), h, NULL}, NULL, &t);
    keys_store(call, keys, head, &t);
}

/* Which blocks of keys a block of queries sees, from the first to behind the last; false: none. */
static bool blocks_seen(const Call *call, int64_t b, int64_t *from, int64_t *to)
{
    Ranges r;
    ranges_load(&call->in[3], call->attr.attention.key_at, key_count(call),
                block_of(call->in[0].n[0], b), &r);
    *from = r.from / SPAN;
    *to = blocks_of(r.to, SPAN);
    return r.to > 0;
}

/* A sequence begins where a block sees no key that one before it saw. If a later block does after
 * all, what was cut is joined again. */
bool sequences_find(const Call *call, Sequences *s)
{
    const int64_t blocks = blocks_of(call->in[0].n[0], SPAN);
    const int64_t step = most(padded(call->in[0].n[2]), MICRO_COLUMNS);
    int64_t end = 0, group = 1, from, to;
    for (int64_t g = 0; g < call->in[1].n[1]; g++)
        group = most(group, key_readers(call, g).to - key_readers(call, g).from);
    *s = (Sequences){.n = 1};
    for (int64_t b = 0; b < blocks; b++) {
        if (!blocks_seen(call, b, &from, &to)) continue;
        while (s->n > 1 && from < s->key[s->n - 1]) s->n--;
        if (end > 0 && from >= end && s->n < MOST_SEQUENCES) {
            s->query[s->n] = b;
            s->key[s->n++] = from;
        }
        end = most(end, to);
    }
    s->query[s->n] = blocks;
    s->key[s->n] = blocks_of(key_count(call), SPAN);
    for (int i = 0; i < s->n; i++)
        if (group * (s->query[i + 1] - s->query[i]) * SPAN * step > MOST_SUMS) return false;
    return true;
}

/* What a task of one sweep keeps for its queries, head after head. */
typedef struct {
    float dq[MOST_SUMS];
    Stats stats[MOST_SUMS / (SPAN * MICRO_COLUMNS)];
} Room;

static void room_open(const Inputs *in, Block blocks, Heads readers, Room *room)
{
    const int64_t step = SPAN * padded(in->channels);
    for (int64_t h = readers.from; h < readers.to; h++)
        for (int64_t b = 0; b < blocks.n; b++) {
            const int64_t at = (h - readers.from) * blocks.n + b;
            const Block next = block_of(in->q->n[0], blocks.at + b + 1);
            panel_fetch(in->dout, next, h);
            panel_fetch(in->o, next, h);
            stats_load(in, block_of(in->q->n[0], blocks.at + b), h, &room->stats[at]);
            memset(room->dq + at * step, 0, (size_t)step * sizeof *room->dq);
        }
}

static void room_store(const Call *call, Block blocks, Heads readers, Room *room)
{
    const int64_t step = SPAN * padded(call->in[0].n[2]);
    const Finish f = {(float)call->number[0], (float)call->attr.attention.scale};
    for (int64_t h = readers.from; h < readers.to; h++)
        for (int64_t b = 0; b < blocks.n; b++) {
            const Block queries = block_of(call->in[0].n[0], blocks.at + b);
            float *sum = room->dq + ((h - readers.from) * blocks.n + b) * step;
            panel_fetch(&call->out[0], queries, h);
            keep_rows(&call->out[0], (Rows){queries, h, sum}, f);
        }
}

/* What a task reads first. */
static void sequence_fetch(const Inputs *in, const SequenceWork *w, int64_t tile)
{
    const int64_t sequence = tile % w->sequences->n, head = tile / w->sequences->n;
    if (head >= in->k->n[1]) return;
    const Block keys = block_of(in->keys, w->sequences->key[sequence]);
    const Block queries = block_of(in->q->n[0], w->sequences->query[sequence]);
    const int64_t reader = key_readers(w->call, head).from;
    panel_fetch(in->k, keys, head);
    panel_fetch(in->v, keys, head);
    panel_fetch(in->q, queries, reader);
    panel_fetch(in->dout, queries, reader);
    panel_fetch(in->o, queries, reader);
}

void sequence_tile(void *work, int64_t tile)
{
    const SequenceWork *w = work;
    const Call *call = w->call;
    const Inputs in = inputs_of(call);
    const int64_t sequence = tile % w->sequences->n, head = tile / w->sequences->n;
    const int64_t *query = w->sequences->query + sequence, *key = w->sequences->key + sequence;
    const Block blocks = {query[0], query[1] - query[0]};
    const Heads readers = key_readers(call, head);
    const int64_t step = SPAN * padded(in.channels);
    Room room;
    KeyState t;
    room_open(&in, blocks, readers, &room);
    for (int64_t j = key[0]; j < key[1]; j++) {
        const Block keys = block_of(in.keys, j);
        if (j + 1 == key[1]) sequence_fetch(&in, w, tile + 1);
        keys_load(call, &in, keys, head, &t);
        for (int64_t h = readers.from; h < readers.to; h++)
            for (int64_t b = 0; b < blocks.n; b++) {
                const int64_t at = (h - readers.from) * blocks.n + b;
                const Rows rows = {block_of(in.q->n[0], blocks.at + b), h, room.dq + at * step};
                add_queries(&in, keys, rows, &room.stats[at], &t);
            }
        keys_store(call, keys, head, &t);
    }
    room_store(call, blocks, readers, &room);
}
