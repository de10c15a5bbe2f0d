/* backward_one_pass.c -- the gradient of attention in one sweep: a task has a sequence and a key head.
 *
 *            queries ->
 *     keys   [ k0 ]  [tile][tile][tile]      the keys of the sequence come one block after another; its
 *            [ k1 ]        [tile][tile]      queries are loaded once, and wait in the task's room beside
 *            [ k2 ]              [tile]      the sums of their dq, which are stored at the end
 *                      dq    dq    dq */
#include "device/cpu/simd/attention/backward.h"

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
    const int64_t step = most(padded(call->in[0].n[2]), SMALL_NR);
    int64_t end = 0, group = 1, from, to;
    for (int64_t g = 0; g < call->in[1].n[1]; g++)
        group = most(group, key_readers(call, g).to - key_readers(call, g).from);
    *s = (Sequences){.n = 1};
    for (int64_t b = 0; b < blocks; b++) {
        if (!blocks_seen(call, b, &from, &to)) continue;
        while (s->n > 1 && from < s->key[s->n - 1]) s->n--;
        if (end > 0 && from >= end && s->n < MAX_SEQUENCES) {
            s->query[s->n] = b;
            s->key[s->n++] = from;
        }
        end = most(end, to);
    }
    s->query[s->n] = blocks;
    s->key[s->n] = blocks_of(key_count(call), SPAN);
    for (int i = 0; i < s->n; i++)
        if (group * (s->query[i + 1] - s->query[i]) * SPAN * step > MAX_SUMS) return false;
    return true;
}

/* What a task keeps of its queries, head after head, block after block: panels of q and dout, dq. */
enum { MAX_BLOCKS = MAX_SUMS / (SPAN * SMALL_NR) };

typedef struct {
    uint32_t q[MAX_SUMS], dout[MAX_SUMS];
    float dq[MAX_SUMS];
    Stats stats[MAX_BLOCKS];
    Queries queries[MAX_BLOCKS];
    int64_t n;
    KeyState keys; /* of the block at hand */
} Room;

typedef struct {
    const Call *call;
    const Sequences *sequences;
} SequenceWork;

/* Tokens of the next task that fit into the second cache beside what this one works on. */
enum { SOON = 4 * SPAN };

static void room_open(const Inputs *in, Block blocks, Heads readers, Room *room)
{
    const int64_t step = SPAN * padded(in->channels);
    room->n = 0;
    for (int64_t h = readers.from; h < readers.to; h++)
        for (int64_t b = 0; b < blocks.n; b++, room->n++) {
            const int64_t at = room->n * step;
            const Block next = block_of(in->q->n[0], blocks.at + b + 1);
            const bool asked = h == readers.from && (b + 1) * SPAN < SOON;
            Queries *const q = &room->queries[room->n];
            *q = (Queries){.block = block_of(in->q->n[0], blocks.at + b),
                           .head = h,
                           .stats = &room->stats[room->n],
                           .q = panel_of(in->way, room->q + at),
                           .dout = panel_of(in->way, room->dout + at),
                           .dq = room->dq + at};
            if (!asked) panel_fetch(in->dout, next, h);
            if (!asked) panel_fetch(in->o, next, h);
            if (!asked) panel_fetch(in->q, next, h);
            queries_load(in, q);
            stats_load(in, q->block, h, &room->stats[room->n]);
            sums_clear(q->dq, in->channels);
        }
}

static void room_store(const Call *call, Room *room)
{
    const Finish f = {(float)call->number[0], (float)call->attr.attention.scale};
    for (int64_t i = 0; i < room->n; i++) {
        const Queries *const q = &room->queries[i];
        if (i + 1 < room->n && (i + 1) * SPAN >= SOON)
            panel_fetch(&call->out[0], q[1].block, q[1].head);
        keep_rows(&call->out[0], (Rows){q->block, q->head, q->dq}, f);
    }
}

static Block soon_of(const int64_t *at, int64_t n)
{
    return (Block){at[0] * SPAN, least(least(at[1] * SPAN, n) - at[0] * SPAN, SOON)};
}

/* What the next task reads first, and where this one's dq goes. */
static void sequence_ask(const Inputs *in, const SequenceWork *w, int64_t tile, const Room *room)
{
    const int64_t heads = w->call->in[1].n[1], sequence = (tile + 1) / heads;
    const int64_t head = (tile + 1) % heads, reader = key_readers(w->call, head).from;
    const int64_t *query = w->sequences->query + sequence, *key = w->sequences->key + sequence;
    Ahead *const a = in->way.ahead;
    if (sequence < w->sequences->n) {
        const Block queries = soon_of(query, in->q->n[0]);
        ahead_add(a, in->k, block_of(in->keys, key[0]), head);
        ahead_add(a, in->v, block_of(in->keys, key[0]), head);
        ahead_add(a, in->q, queries, reader);
        ahead_add(a, in->dout, queries, reader);
        ahead_add(a, in->o, queries, reader);
    }
    for (int64_t i = least(room->n, SOON / SPAN) - 1; i >= 0; i--)
        ahead_add(a, &w->call->out[0], room->queries[i].block, room->queries[i].head);
}

static void sequence_tile(void *work, void *own, int64_t tile)
{
    const SequenceWork *w = work;
    const Call *call = w->call;
    Inputs in = inputs_of(call);
    Ahead ahead = {.n = 0};
    const int64_t heads = w->call->in[1].n[1], sequence = tile / heads, head = tile % heads;
    const int64_t *query = w->sequences->query + sequence, *key = w->sequences->key + sequence;
    Room *const room = own;
    in.way.ahead = &ahead;
    room_open(&in, (Block){query[0], query[1] - query[0]}, key_readers(call, head), room);
    way_begin(in.way);
    for (int64_t j = key[0]; j < key[1]; j++) {
        const Rows keys = {block_of(in.keys, j), head, NULL};
        if (j == most(key[0], key[1] - SOON / SPAN)) sequence_ask(&in, w, tile, room);
        keys_load(call, &in, keys.block, head, &room->keys);
        for (int64_t i = 0; i < room->n; i++)
            add_queries(&in, keys, &room->queries[i], &room->keys);
        keys_store(call, &in, keys.block, head, &room->keys);
    }
    way_end(in.way);
    room_store(call, room);
}

Err sweep_once(const Call *call, const Sequences *sequences)
{
    SequenceWork work = {call, sequences};
    const ThreadWorkspaceSize size = {sizeof(Room), "the gradient of attention"};
    return thread_workspace_run(call->team, sequences->n * call->in[1].n[1], size, sequence_tile,
                                &work);
}
