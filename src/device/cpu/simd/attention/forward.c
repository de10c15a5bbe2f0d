/* forward.c -- o = softmax(scale q k') v, the driver and the vector paths; attention.h draws it.
 *
 * Scores are in units of log 2, so weights are powers of 2. If a tile raises a row's max, its sum
 * and o are rescaled by 2^(old - new). At the end o /= sum and lse = log 2 (max + log2(sum)). A
 * call that carries on from other blocks of keys starts with max = log2(e) lse, a sum near 1, o.
 * forward_amx.c has the tiles of the AMX path, decode.c calls with few queries. */
#include "device/cpu/simd/attention/forward.h"

/* Several blocks of queries share the panels of k and v: the rows of a head are pages apart, and
 * reading them again for each block took a tenth of the time. Consecutive tasks cover NEARBY_TOKENS
 * tokens of one head, then of the next head, whose rows are adjacent in memory. */
enum { NEARBY_TOKENS = 512 };

/* The split of a call into tasks: query blocks per task, and tasks per head for NEARBY_TOKENS
 * tokens. The result does not depend on it. */
typedef struct {
    const Call *call;
    int64_t blocks, per_head;
} ForwardTasks;

/* The head of a task, and the index of its first block of queries. */
typedef struct {
    int64_t head, block;
} TaskStart;

static TaskStart task_start(const ForwardTasks *c, int64_t task)
{
    const int64_t heads = c->call->in[0].n[1], group = task / (c->per_head * heads);
    const int64_t rest = task % (c->per_head * heads);
    return (TaskStart){rest / c->per_head, (group * c->per_head + rest % c->per_head) * c->blocks};
}

static V lanes_max(const Scores *s, int lane, Hull hull, V max)
{
    V odd = max;
    for (int j = hull.from; j < hull.to; j += 2) {
        max = v_max(max, v_load(&s->f32[j][lane]));
        odd = v_max(odd, v_load(&s->f32[j + 1][lane]));
    }
    return v_max(max, odd);
}

/* Replaces the scores of W lanes by weights 2^(s - base). Returns the sum of each lane. */
static V lanes_weights(Scores *s, int lane, Hull hull, V base)
{
    V sum = {0};
    for (int j = hull.from; j < hull.to; j++) {
        const V p = v_exp2(v_load(&s->f32[j][lane]) - base);
        v_store(&s->f32[j][lane], p);
        sum += p;
    }
    return sum;
}

/* Turns scores into weights, W queries at a time, and rescales their sums to the new max. */
static void block_weights(AttentionPath path, QueryBlock *block, const Bounds *queries, Scores *s)
{
    for (int i = 0; i < BLOCK; i += W) {
        const Hull hull = lanes_hull(queries, i);
        const V old = v_load(block->max + i), max = lanes_max(s, i, hull, old);
        /* While all keys so far are masked, max is -inf, and base 0 gives weights of 0. */
        const V base = v_pick(max == v_set(-HUGE_VALF), v_set(0), max);
        const V rescale = v_exp2(old - base);
        const V sum = path.bf16 ? bf16_weights(s, i, hull, base) : lanes_weights(s, i, hull, base);
        v_store(block->max + i, max);
        v_store(block->sum + i, v_load(block->sum + i) * rescale + sum);
        v_store(block->rescale + i, rescale);
    }
}

static void rescale_rows(QueryBlock *block, int64_t step)
{
    for (int i = 0; i < BLOCK; i++) {
        if (block->rescale[i] == 1) continue;
        float *o = block->o.f32 + i * step;
        for (int64_t c = 0; c < step; c += W) v_store(o + c, block->rescale[i] * v_load(o + c));
    }
}

static void store_rows(const Call *call, const QueryBlock *block, int64_t head)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    const int64_t channels = o->n[2], step = padded(channels);
    const ElementForm form = form_of_type(o->dtype);
    float *const to = (float *)lse->data + head * lse->stride[1];
    for (int64_t i = 0; i < block->queries.n; i++) {
        /* A row that attends to no key: o = 0 and lse = -inf. */
        const float factor = block->sum[i] == 0 ? 0 : 1 / block->sum[i];
        row_write(head_row(o, block->queries.at + i, head), form, channels, factor,
                  block->o.f32 + i * step);
        to[(block->queries.at + i) * lse->stride[0]] =
            (float)((double)block->max[i] / LOG2_E) + logf(block->sum[i]);
    }
}

/* The rows as calls for other blocks of keys have left them. The sum makes up for the rounding of
 * max. */
static void query_block_carry(const Call *call, int64_t head, AttentionPath path, QueryBlock *block)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    const int64_t channels = o->n[2], step = padded(channels);
    const float *const from = (const float *)lse->data + head * lse->stride[1];
    float buffer[MAX_CHANNELS];
    for (int64_t i = 0; i < block->queries.n; i++) {
        const double log2_sum = LOG2_E * (double)from[(block->queries.at + i) * lse->stride[0]];
        const float max = (float)log2_sum;
        if (max == -HUGE_VALF) continue;
        const float sum = (float)exp2(log2_sum - (double)max);
        const float *row = row_read(head_row(o, block->queries.at + i, head), channels, buffer);
        for (int64_t c = 0; c < channels; c++) block->o.f32[i * step + c] = sum * row[c];
        block->max[i] = max;
        if (path.amx)
            block->lane_sums[i][0] = sum;
        else
            block->sum[i] = sum;
    }
}

static void query_block_open(const Call *call, TokenBlock queries, int64_t head, ForwardState *st,
                             QueryBlock *block)
{
    const Tensor *q = &call->in[0];
    block->queries = queries;
    if (st->path.amx)
        amx_query_block_open(st->path, q, head, block);
    else {
        panel_load(st->path, q, queries, head, &st->k);
        panel_transpose(st->path, &st->k, (float)(LOG2_E * call->attr.attention.scale), &block->q);
    }
    ranges_load(&call->in[3], call->attr.attention.key_at, key_count(call), queries,
                &block->ranges);
    sums_clear(block->o.f32, q->n[2]);
    for (int i = 0; i < BLOCK; i++) {
        block->max[i] = -HUGE_VALF;
        block->sum[i] = 0;
    }
    if (call->number[0] != 0) query_block_carry(call, head, st->path, block);
}

/* Adds a tile. Returns true if rows of v were cleared (nonfinite.c). */
static bool query_block_add(TokenBlock keys, Coverage coverage, ForwardState *st, QueryBlock *block)
{
    if (st->path.amx) return amx_query_block_add(keys, coverage, st, block);
    TileBounds bounds;
    path_tile_bounds(st->path, &block->ranges, keys, coverage, &bounds);
    score(st->path, &st->k, &block->q, &bounds.keys, &st->s);
    if (coverage == PARTIAL_TILE) mask_lanes(&block->ranges, keys, &bounds.queries, &st->s);
    block_weights(st->path, block, &bounds.queries, &st->s);
    rescale_rows(block, padded(st->path.channels));
    return accumulate_owner(st->path, &st->s, &st->v, &bounds.queries, block->o.f32);
}

/* Adds a block of keys to all query blocks that attend to it; the first of them loads k and v. A
 * tile that cleared rows of v makes the next one load v again. */
static void add_keys_to_blocks(const Call *call, TokenBlock keys, int64_t kv_head, ForwardState *st)
{
    const Tensor *k = &call->in[1], *v = &call->in[2];
    const TokenBlock next = block_of(st->to, keys.at / BLOCK + 1);
    bool k_loaded = false, v_loaded = false;
    prefetch_push(&st->prefetch, v, next, kv_head);
    prefetch_push(&st->prefetch, k, next, kv_head);
    for (int i = 0; i < st->n_blocks; i++) {
        QueryBlock *block = &st->block[i];
        const Coverage coverage = ranges_coverage(&block->ranges, block->queries.n, keys);
        if (coverage == EMPTY_TILE) continue;
        if (!k_loaded) panel_load(st->path, k, keys, kv_head, &st->k);
        if (!k_loaded && st->path.amx) panel_transpose(st->path, &st->k, 1, &st->k_transposed);
        if (!v_loaded) panel_load(st->path, v, keys, kv_head, &st->v);
        if (!v_loaded) panel_pair_tokens(st->path, st->path.amx ? SUM_OTHER : SUM_OWNER, &st->v);
        v_loaded = !query_block_add(keys, coverage, st, block);
        k_loaded = true;
    }
}

static TokenBlock queries_of(const ForwardTasks *c, TaskStart start)
{
    const int64_t n = c->call->in[0].n[0], at = min_i64(start.block * BLOCK, n);
    return (TokenBlock){at, min_i64(n - at, c->blocks * BLOCK)};
}

/* Prefetches the o of this task, and the q, k and v of the next one. Keys at the positions of its
 * queries are new to the cache if queries and keys are the same tokens. */
static void task_prefetch(const ForwardTasks *c, int64_t task, PrefetchStack *prefetch)
{
    const Tensor *in = c->call->in;
    const TaskStart here = task_start(c, task), next = task_start(c, task + 1);
    const TokenBlock queries = queries_of(c, next);
    const int64_t n_keys = key_count(c->call), at = min_i64(queries.at, n_keys);
    const TokenBlock keys = {at, min_i64(n_keys - at, queries.n)};
    for (int i = 1; i < 3 && n_keys > 0; i++)
        prefetch_push(prefetch, &in[i], keys, key_head(c->call, next.head));
    prefetch_push(prefetch, &in[0], queries, next.head);
    prefetch_push(prefetch, &c->call->out[0], queries_of(c, here), here.head);
}

static void query_blocks_open(const ForwardTasks *c, TaskStart start, ForwardState *st)
{
    const int64_t n = c->call->in[0].n[0];
    st->n_blocks = (int)blocks_of(queries_of(c, start).n, BLOCK);
    st->from = key_count(c->call);
    st->to = 0;
    for (int i = 0; i < st->n_blocks; i++) {
        query_block_open(c->call, block_of(n, start.block + i), start.head, st, &st->block[i]);
        st->from = min_i64(st->from, st->block[i].ranges.from);
        st->to = max_i64(st->to, st->block[i].ranges.to);
    }
}

/* A task: some blocks of queries of one query head. */
static void forward_task(void *work, void *space, int64_t task)
{
    const ForwardTasks *c = work;
    const Call *call = c->call;
    const TaskStart start = task_start(c, task);
    const int64_t n_keys = key_count(call), kv_head = n_keys > 0 ? key_head(call, start.head) : 0;
    ForwardState *const st = space;
    st->path = path_of(call, NULL);
    st->path.prefetch = &st->prefetch;
    st->prefetch.n = 0;
    st->k = panel_of(st->path, st->k_buffer.dwords);
    st->v = panel_of(st->path, st->v_buffer.dwords);
    query_blocks_open(c, start, st);
    if (st->n_blocks == 0) return; /* past the last token */
    task_prefetch(c, task, &st->prefetch);
    path_begin(st->path);
    for (int64_t b = st->from / BLOCK; b < blocks_of(st->to, BLOCK); b++)
        add_keys_to_blocks(call, block_of(n_keys, b), kv_head, st);
    path_end(st->path);
    for (int i = 0; i < st->n_blocks && st->path.amx; i++) amx_query_block_sum(&st->block[i]);
    for (int i = 0; i < st->n_blocks; i++) store_rows(call, &st->block[i], start.head);
}

static Err forward_run(const Call *call)
{
    const Tensor *q = &call->in[0];
    const int64_t threads = call->team ? team_threads(call->team) : 1;
    ForwardTasks c = {.call = call,
                      .blocks = path_of(call, NULL).amx ? MAX_QUERY_BLOCKS : USUAL_QUERY_BLOCKS};
    /* Eight tasks per thread balance the load: causal tasks differ in their number of tiles. */
    while (c.blocks > MIN_QUERY_BLOCKS &&
           blocks_of(q->n[0], c.blocks * BLOCK) * q->n[1] < 8 * threads)
        c.blocks /= 2;
    c.per_head = NEARBY_TOKENS / (c.blocks * BLOCK);
    const int64_t tasks = blocks_of(q->n[0], NEARBY_TOKENS) * c.per_head * q->n[1];
    return thread_workspace_run(call->team, tasks,
                                (ThreadWorkspaceSize){sizeof(ForwardState), "attention"},
                                forward_task, &c);
}

Err CPU_NAME(attention)(const Call *call)
{
    const Tensor *q = &call->in[0];
    if (q->n[2] > MAX_CHANNELS || q->n[2] == 0)
        return ref_attention(call); /* no model has such heads */
    if (attention_is_decode(call)) {
        attention_decode(call);
        return OK;
    }
    return forward_run(call);
}
