/* backward_keys.c -- the backward pass for a block of keys: dk, dv and its addends of dq, in
 * one pass. Tiles are [query][key]. */
#include "device/cpu/simd/attention/backward.h"

static void softmax_grad_rows(const SoftmaxStats *st, TokenBlock keys, const Bounds *queries,
                              KeyBlock *t)
{
    const AttentionPath f32 = {.bf16 = false};
    for (int i = 0; i < BLOCK; i++) {
        const V lse = v_set(st->lse[i]), delta = v_set(st->delta[i]);
        const int from = queries->from[i / SMALL_MR], to = queries->to[i / SMALL_MR];
        for (int j = 0; j < BLOCK; j += W) {
            V s = v_load(&t->s.f32[i][j]), dp = v_load(&t->dp.f32[i][j]);
            if (from < j + W && to > j) softmax_grad(f32, lse, delta, &s, &dp);
            if (queries->coverage == PARTIAL_TILE) {
                const VI visible = keys_attended(&st->ranges, i, keys_from(keys.at + j));
                s = v_pick(visible, s, v_set(0));
                dp = v_pick(visible, dp, v_set(0));
            }
            v_store(&t->s.f32[i][j], s);
            v_store(&t->dp.f32[i][j], dp);
        }
    }
}

static void key_rows_load(const BackwardInputs *in, TokenBlock keys, int64_t head, KeyBlock *t)
{
    t->k_rows = panel_of(in->path, t->rows_buffer.dwords);
    panel_load(in->path, in->k, keys, head, &t->k_rows);
    panel_pair_tokens(in->path, SUM_OTHER, &t->k_rows);
}

/* Prefetches the next k and v, and before them the dk and dv that this block stores. */
static void key_block_prefetch(const Call *call, const BackwardInputs *in, TokenBlock keys,
                               int64_t head)
{
    const TokenBlock next = block_of(in->keys, keys.at / BLOCK + 1);
    prefetch_push(in->path.prefetch, in->v, next, head);
    prefetch_push(in->path.prefetch, in->k, next, head);
    prefetch_push(in->path.prefetch, &call->out[2], keys, head);
    prefetch_push(in->path.prefetch, &call->out[1], keys, head);
}

void key_block_load(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                    KeyBlock *t)
{
    t->k_rows = panel_of(in->path, t->rows_buffer.dwords);
    panel_load(in->path, in->v, keys, head, &t->k_rows);
    panel_transpose(in->path, &t->k_rows, 1, &t->v);
    key_rows_load(in, keys, head, t);
    panel_transpose(in->path, &t->k_rows, (float)(in->log2_factor * (double)in->scale), &t->k);
    key_block_prefetch(call, in, keys, head);
    sums_clear(t->dk.f32, in->channels);
    sums_clear(t->dv.f32, in->channels);
}

void query_panels_load(const BackwardInputs *in, QueryPanels *q)
{
    panel_load(in->path, in->q, q->block, q->head, &q->q);
    panel_load(in->path, in->dout, q->block, q->head, &q->dout);
    panel_pair_tokens(in->path, SUM_OWNER, &q->q);
    panel_pair_tokens(in->path, SUM_OWNER, &q->dout);
}

static void score_grad_tile(const BackwardInputs *in, TokenBlock keys, const Bounds *b,
                            const QueryPanels *q, KeyBlock *t)
{
    const GradRows whole = {0, BLOCK, &t->s, &t->dp};
    score(in->path, &q->q, &t->k, b, &t->s);
    score(in->path, &q->dout, &t->v, b, &t->dp);
    if (in->path.bf16)
        bf16_softmax_grad(q->stats, keys, b, &whole);
    else
        softmax_grad_rows(q->stats, keys, b, t);
}

/* Adds a tile. A partial tile clears rows that are not finite; the next tile needs them, so the
 * panel is loaded again. */
static void add_tile(const BackwardInputs *in, HeadBlock keys, const TileBounds *bounds,
                     QueryPanels *q, KeyBlock *t)
{
    const bool whole = in->path.amx && bounds->queries.coverage == FULL_TILE;
    if (whole)
        amx_grad_full(in, keys.block, &bounds->queries, q, t);
    else
        (in->path.amx ? amx_grad_partial : score_grad_tile)(in, keys.block, &bounds->queries, q, t);
    if (q->dq && !whole && accumulate_other(in->path, &t->dp, &t->k_rows, &bounds->queries, q->dq))
        key_rows_load(in, keys.block, keys.head, t);
    const bool dout_cleared = accumulate_owner(in->path, &t->s, &q->dout, &bounds->keys, t->dv.f32);
    const bool q_cleared = accumulate_owner(in->path, &t->dp, &q->q, &bounds->keys, t->dk.f32);
    if (dout_cleared || q_cleared) query_panels_load(in, q);
}

void key_block_add_queries(const BackwardInputs *in, HeadBlock keys, QueryPanels *q, KeyBlock *t)
{
    const Coverage coverage = ranges_coverage(&q->stats->ranges, q->block.n, keys.block);
    TileBounds bounds;
    if (coverage == EMPTY_TILE) return;
    path_tile_bounds(in->path, &q->stats->ranges, keys.block, coverage, &bounds);
    add_tile(in, keys, &bounds, q, t);
}

void key_block_store(const Call *call, const BackwardInputs *in, TokenBlock keys, int64_t head,
                     KeyBlock *t)
{
    const float *const dk = sums_as_rows(in->path, t->dk.f32, t->rows_buffer.f32);
    head_block_store(&call->out[1], (HeadBlock){keys, head, dk},
                     (StoreScale){(float)call->number[1], in->scale});
    const float *const dv = sums_as_rows(in->path, t->dv.f32, t->rows_buffer.f32);
    head_block_store(&call->out[2], (HeadBlock){keys, head, dv},
                     (StoreScale){(float)call->number[2], 1});
}

/* Adds a block of queries of one head, if it attends to the keys. */
static void add_queries_if_visible(const BackwardInputs *in, HeadBlock keys, QueryPanels *q,
                                   SoftmaxStats *stats, KeyBlock *t)
{
    const TokenBlock next = block_of(in->q->n[0], q->block.at / BLOCK + 1);
    ranges_load(in->ranges, in->key_at, in->keys, q->block, &stats->ranges);
    if (ranges_coverage(&stats->ranges, q->block.n, keys.block) == EMPTY_TILE) return;
    stats_load(in, q->block, q->head, stats);
    query_panels_load(in, q);
    prefetch_push(in->path.prefetch, in->q, next, q->head);
    prefetch_push(in->path.prefetch, in->dout, next, q->head);
    key_block_add_queries(in, keys, q, t);
}

typedef struct {
    KeyBlock keys;
    PanelBuffer q, dout;
    SoftmaxStats stats;
} DkvWorkspace;

/* A task: a block of keys of one key head. */
static void dkv_task(void *work, void *space, int64_t task)
{
    const Call *call = work;
    BackwardInputs in = backward_inputs(call);
    PrefetchStack prefetch = {.n = 0};
    const int64_t blocks = blocks_of(in.keys, BLOCK), head = task / blocks;
    const Heads readers = key_readers(call, head);
    const HeadBlock keys = {block_of(in.keys, task % blocks), head, NULL};
    DkvWorkspace *const t = space;
    QueryPanels q = {.stats = &t->stats,
                     .q = panel_of(in.path, t->q.dwords),
                     .dout = panel_of(in.path, t->dout.dwords)};
    in.path.prefetch = &prefetch;
    key_block_load(call, &in, keys.block, head, &t->keys);
    path_begin(in.path);
    for (q.head = readers.from; q.head < readers.to; q.head++)
        for (int64_t b = 0; b < blocks_of(in.q->n[0], BLOCK); b++) {
            q.block = block_of(in.q->n[0], b);
            add_queries_if_visible(&in, keys, &q, &t->stats, &t->keys);
        }
    path_end(in.path);
    key_block_store(call, &in, keys.block, head, &t->keys);
}

Err backward_dkv_pass(const Call *call)
{
    const Tensor *k = &call->in[1];
    const int64_t tasks = blocks_of(k->n[0], BLOCK) * k->n[1];
    const ThreadWorkspaceSize size = {sizeof(DkvWorkspace), "the gradient of keys"};
    return thread_workspace_run(call->team, tasks, size, dkv_task, (void *)call);
}
