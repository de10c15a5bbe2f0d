/* backward_one_pass.c -- the backward pass in one pass: a task is a sequence and a key head.
 *
 *            queries ->
 *     keys   [ k0 ]  [tile][tile][tile]      blocks of keys come one after another. The panels of
 *            [ k1 ]        [tile][tile]      all queries are loaded once and stay in the task's
 *            [ k2 ]              [tile]      workspace, next to the sums of dq, which are stored
 *                      dq    dq    dq        at the end */
#include "device/cpu/simd/attention/backward.h"

/* The blocks of keys [from, to) that a block of queries attends to. False: none. */
static bool key_blocks_of(const Call *call, int64_t b, int64_t *from, int64_t *to)
{
    Ranges r;
    ranges_load(&call->in[3], call->attr.attention.key_at, key_count(call),
                block_of(call->in[0].n[0], b), &r);
    *from = r.from / BLOCK;
    *to = blocks_of(r.to, BLOCK);
    return r.to > 0;
}

/* A sequence begins at a block of queries whose keys all come after those of earlier blocks. If a
 * later block attends to keys before that point after all, the sequences are joined again. */
bool sequences_find(const Call *call, Sequences *s)
{
    const int64_t blocks = blocks_of(call->in[0].n[0], BLOCK);
    const int64_t step = max_i64(padded(call->in[0].n[2]), SMALL_NR);
    int64_t end = 0, group = 1, from, to;
    for (int64_t g = 0; g < call->in[1].n[1]; g++)
        group = max_i64(group, key_readers(call, g).to - key_readers(call, g).from);
    *s = (Sequences){.n = 1};
    for (int64_t b = 0; b < blocks; b++) {
        if (!key_blocks_of(call, b, &from, &to)) continue;
        while (s->n > 1 && from < s->key[s->n - 1]) s->n--;
        if (end > 0 && from >= end && s->n < MAX_SEQUENCES) {
            s->query[s->n] = b;
            s->key[s->n++] = from;
        }
        end = max_i64(end, to);
    }
    s->query[s->n] = blocks;
    s->key[s->n] = blocks_of(key_count(call), BLOCK);
    /* All query heads of a key head are in one task, so its workspace holds the dq of all. */
    for (int i = 0; i < s->n; i++)
        if (group * (s->query[i + 1] - s->query[i]) * BLOCK * step > MAX_DQ_FLOATS) return false;
    return true;
}

enum { MAX_WORKSPACE_BLOCKS = MAX_DQ_FLOATS / (BLOCK * SMALL_NR) };

/* Workspace of a task: panels of q and dout and the sums of dq, by head, then by block. */
typedef struct {
    uint32_t q[MAX_DQ_FLOATS], dout[MAX_DQ_FLOATS];
    float dq[MAX_DQ_FLOATS];
    SoftmaxStats stats[MAX_WORKSPACE_BLOCKS];
    QueryPanels queries[MAX_WORKSPACE_BLOCKS];
    int64_t n;
    KeyBlock keys; /* the current block */
} SequenceWorkspace;

typedef struct {
    const Call *call;
    const Sequences *sequences;
} SequenceWork;

/* Tokens of the next task that fit into L2 next to the data of the current one. */
enum { PREFETCH_TOKENS = 4 * BLOCK };

static void workspace_open(const BackwardInputs *in, TokenBlock blocks, Heads readers,
                           SequenceWorkspace *space)
{
    const int64_t step = BLOCK * padded(in->channels);
    space->n = 0;
    for (int64_t h = readers.from; h < readers.to; h++)
        for (int64_t b = 0; b < blocks.n; b++, space->n++) {
            const int64_t at = space->n * step;
            const TokenBlock next = block_of(in->q->n[0], blocks.at + b + 1);
            const bool prefetched = h == readers.from && (b + 1) * BLOCK < PREFETCH_TOKENS;
            QueryPanels *const q = &space->queries[space->n];
            *q = (QueryPanels){.block = block_of(in->q->n[0], blocks.at + b),
                               .head = h,
                               .stats = &space->stats[space->n],
                               .q = panel_of(in->path, space->q + at),
                               .dout = panel_of(in->path, space->dout + at),
                               .dq = space->dq + at};
            if (!prefetched) panel_prefetch(in->dout, next, h);
            if (!prefetched) panel_prefetch(in->o, next, h);
            if (!prefetched) panel_prefetch(in->q, next, h);
            query_panels_load(in, q);
            stats_load(in, q->block, h, &space->stats[space->n]);
            sums_clear(q->dq, in->channels);
        }
}

static void workspace_store(const Call *call, SequenceWorkspace *space)
{
    const StoreScale f = {(float)call->number[0], (float)call->attr.attention.scale};
    for (int64_t i = 0; i < space->n; i++) {
        const QueryPanels *const q = &space->queries[i];
        if (i + 1 < space->n && (i + 1) * BLOCK >= PREFETCH_TOKENS)
            panel_prefetch(&call->out[0], q[1].block, q[1].head);
        head_block_store(&call->out[0], (HeadBlock){q->block, q->head, q->dq}, f);
    }
}

/* The first tokens of the blocks [at[0], at[1]), of n tokens in all. */
static TokenBlock prefetch_part(const int64_t *at, int64_t n)
{
    return (TokenBlock){at[0] * BLOCK,
                        min_i64(min_i64(at[1] * BLOCK, n) - at[0] * BLOCK, PREFETCH_TOKENS)};
}

/* Pushes the first inputs of the next task, and above them this task's dq, which is stored soon. */
static void sequence_prefetch(const BackwardInputs *in, const SequenceWork *w, int64_t task,
                              const SequenceWorkspace *space)
{
    const int64_t heads = w->call->in[1].n[1], sequence = (task + 1) / heads;
    const int64_t head = (task + 1) % heads, reader = key_readers(w->call, head).from;
    const int64_t *query = w->sequences->query + sequence, *key = w->sequences->key + sequence;
    PrefetchStack *const a = in->path.prefetch;
    if (sequence < w->sequences->n) {
        const TokenBlock queries = prefetch_part(query, in->q->n[0]);
        prefetch_push(a, in->k, block_of(in->keys, key[0]), head);
        prefetch_push(a, in->v, block_of(in->keys, key[0]), head);
        prefetch_push(a, in->q, queries, reader);
        prefetch_push(a, in->dout, queries, reader);
        prefetch_push(a, in->o, queries, reader);
    }
    for (int64_t i = min_i64(space->n, PREFETCH_TOKENS / BLOCK) - 1; i >= 0; i--)
        prefetch_push(a, &w->call->out[0], space->queries[i].block, space->queries[i].head);
}

static void sequence_task(void *work, void *workspace, int64_t task)
{
    const SequenceWork *w = work;
    const Call *call = w->call;
    BackwardInputs in = backward_inputs(call);
    PrefetchStack prefetch = {.n = 0};
    const int64_t heads = w->call->in[1].n[1], sequence = task / heads, head = task % heads;
    const int64_t *query = w->sequences->query + sequence, *key = w->sequences->key + sequence;
    SequenceWorkspace *const space = workspace;
    in.path.prefetch = &prefetch;
    workspace_open(&in, (TokenBlock){query[0], query[1] - query[0]}, key_readers(call, head),
                   space);
    path_begin(in.path);
    for (int64_t j = key[0]; j < key[1]; j++) {
        const HeadBlock keys = {block_of(in.keys, j), head, NULL};
        if (j == max_i64(key[0], key[1] - PREFETCH_TOKENS / BLOCK))
            sequence_prefetch(&in, w, task, space);
        key_block_load(call, &in, keys.block, head, &space->keys);
        for (int64_t i = 0; i < space->n; i++)
            key_block_add_queries(&in, keys, &space->queries[i], &space->keys);
        key_block_store(call, &in, keys.block, head, &space->keys);
    }
    path_end(in.path);
    workspace_store(call, space);
}

Err backward_one_pass(const Call *call, const Sequences *sequences)
{
    SequenceWork work = {call, sequences};
    const ThreadWorkspaceSize size = {sizeof(SequenceWorkspace), "the gradient of attention"};
    return thread_workspace_run(call->team, sequences->n * call->in[1].n[1], size, sequence_task,
                                &work);
}
