/* backward.c -- the backward pass: the choice between one pass and two, statistics of queries, and
 * the pass for dq. backward.h has the formulas, backward_keys.c the pass for dk and dv. */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/amx_gemm.h"

static float stat_of(const Tensor *t, int64_t token, int64_t head)
{
    return ((const float *)t->data)[token * t->stride[0] + head * t->stride[1]];
}

EACH_FORM V dot_of(ElementForm form, const void *a, const void *b, int64_t n)
{
    V sum = {0};
    for (int64_t c = 0; c < n; c += W) sum += v_load_as(form, a, c) * v_load_as(form, b, c);
    return sum;
}

/* Returns partial sums of dout . o, one per lane. */
static V row_delta(const Tensor *douts, const Tensor *os, int64_t token, int64_t head)
{
    const RowRef dout = head_row(douts, token, head), o = head_row(os, token, head);
    const int64_t channels = douts->n[2];
    if (row_is_whole(dout, BF16, channels) && row_is_whole(o, BF16, channels))
        return dot_of(AS_BF16, dout.at, o.at, channels);
    float buffer[2][MAX_CHANNELS];
    const float *a = row_read(dout, channels, buffer[0]);
    const float *b = row_read(o, channels, buffer[1]);
    V sum = {0};
    for (int64_t c = 0; c < channels; c += W)
        sum += v_load_to(a + c, channels - c) * v_load_to(b + c, channels - c);
    return sum;
}

static void delta_row(const void *work, int64_t row)
{
    const Call *call = work;
    const Tensor *delta = &call->out[0];
    const int64_t token = row / delta->n[1], head = row % delta->n[1];
    ((float *)delta->data)[token * delta->stride[0] + head * delta->stride[1]] =
        v_sum(row_delta(&call->in[0], &call->in[1], token, head));
}

Err CPU_NAME(attention_delta)(const Call *call)
{
    const Tensor *dout = &call->in[0];
    if (dout->n[2] > MAX_CHANNELS) return ref_attention_delta(call);
    run_rows(call->team, dout->n[0] * dout->n[1], dout->n[2], delta_row, call);
    return OK;
}

/* delta of W rows at a time: transposes their partial sums and adds them in the order of v_sum. */
static void deltas_load(const BackwardInputs *in, TokenBlock queries, int64_t head, float *delta)
{
    float part[W][W], transposed[W][W];
    for (int64_t i = 0; i < BLOCK && in->o->ndim == 2; i++) /* it is given */
        delta[i] = i < queries.n ? stat_of(in->o, queries.at + i, head) : 0;
    if (in->o->ndim == 2) return;
    for (int64_t at = 0; at < BLOCK; at += W) {
        for (int64_t i = 0; i < W; i++)
            v_store(part[i], at + i < queries.n
                                 ? row_delta(in->dout, in->o, queries.at + at + i, head)
                                 : v_set(0));
        transpose_dwords(part, W, transposed, W);
        for (int half = W / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++)
                v_store(transposed[i], v_load(transposed[i]) + v_load(transposed[i + half]));
        v_store(delta + at, v_load(transposed[0]));
    }
}

void stats_load(const BackwardInputs *in, TokenBlock queries, int64_t head, SoftmaxStats *st)
{
    Ranges *r = &st->ranges;
    st->factor = in->path.factor;
    ranges_load(in->ranges, in->key_at, in->keys, queries, r);
    deltas_load(in, queries, head, st->delta);
    for (int64_t i = 0; i < BLOCK; i++) {
        const float lse = i < queries.n ? stat_of(in->lse, queries.at + i, head) : -HUGE_VALF;
        st->lse[i] = lse == -HUGE_VALF ? HUGE_VALF : (float)(in->log2_factor * (double)lse);
        if (lse == -HUGE_VALF) r->lo[0][i] = r->hi[0][i] = r->lo[1][i] = r->hi[1][i] = 0;
    }
    ranges_bound(r, queries.n);
}

void head_block_store(const Tensor *x, HeadBlock rows, StoreScale f)
{
    const int64_t channels = x->n[2], step = padded(channels);
    const ElementForm form = form_of_type(x->dtype);
    for (int64_t i = 0; i < rows.block.n; i++) {
        const RowRef row = head_row(x, rows.block.at + i, rows.head);
        if (f.keep == 0) /* x is not read: it may be NaN */
            row_write(row, form, channels, f.factor, rows.sum + i * step);
        else
            row_blend(row, channels, f.keep, f.factor, rows.sum + i * step);
    }
}

/* Workspace of a block of queries, the owner. Tiles are [key][query]. dp: dout v', then ds. */
typedef struct {
    TransposedPanel q, dout;
    PanelBuffer k_buffer, v_buffer, dq;
    Panel k, v;
    Scores s, dp;
    SoftmaxStats stats;
} DqWorkspace;

static void softmax_grad_lanes(AttentionPath path, TokenBlock keys, Coverage coverage,
                               DqWorkspace *t)
{
    for (int i = 0; i < BLOCK; i += W) {
        const V lse = v_load(t->stats.lse + i), delta = v_load(t->stats.delta + i);
        for (int j = 0; j < BLOCK; j++) {
            V s = v_load(&t->s.f32[j][i]), dp = v_load(&t->dp.f32[j][i]);
            softmax_grad(path, lse, delta, &s, &dp);
            if (coverage == PARTIAL_TILE)
                dp = v_pick(queries_attending(&t->stats.ranges, i, keys.at + j), dp, v_set(0));
            v_store(&t->dp.f32[j][i], dp);
        }
    }
    if (path.bf16) bf16_round(&t->dp);
}

/* Scores and dp of a tile [key][query]. */
static void score_tile(AttentionPath path, const Bounds *b, DqWorkspace *t)
{
    for (int j = 0; j < BLOCK && path.amx; j += SUBTILE) {
        amx_score(path, &t->k, &t->q, b, (SubtileRow){j, t->s.f32[j]});
        amx_score(path, &t->v, &t->dout, b, (SubtileRow){j, t->dp.f32[j]});
    }
    if (path.amx) return;
    score(path, &t->k, &t->q, b, &t->s);
    score(path, &t->v, &t->dout, b, &t->dp);
}

/* A task: a block of queries of one query head. */
static void dq_task(void *work, void *space, int64_t task)
{
    const Call *call = work;
    const BackwardInputs in = backward_inputs(call);
    const int64_t blocks = blocks_of(in.q->n[0], BLOCK);
    const TokenBlock queries = block_of(in.q->n[0], task % blocks);
    const int64_t head = task / blocks, kv_head = in.keys > 0 ? key_head(call, head) : 0;
    DqWorkspace *const t = space;
    TileBounds bounds;
    t->k = panel_of(in.path, t->k_buffer.dwords);
    t->v = panel_of(in.path, t->v_buffer.dwords);
    panel_load(in.path, in.q, queries, head, &t->k);
    panel_transpose(in.path, &t->k, (float)(in.log2_factor * (double)in.scale), &t->q);
    panel_load(in.path, in.dout, queries, head, &t->k);
    panel_transpose(in.path, &t->k, 1, &t->dout);
    stats_load(&in, queries, head, &t->stats);
    sums_clear(t->dq.f32, in.channels);
    path_begin(in.path);
    for (int64_t b = t->stats.ranges.from / BLOCK; b < blocks_of(t->stats.ranges.to, BLOCK); b++) {
        const TokenBlock keys = block_of(in.keys, b);
        const Coverage coverage = ranges_coverage(&t->stats.ranges, queries.n, keys);
        if (coverage == EMPTY_TILE) continue;
        panel_load(in.path, in.k, keys, kv_head, &t->k);
        panel_pair_tokens(in.path, SUM_OWNER, &t->k);
        panel_load(in.path, in.v, keys, kv_head, &t->v);
        panel_prefetch(in.k, block_of(in.keys, b + 1), kv_head);
        panel_prefetch(in.v, block_of(in.keys, b + 1), kv_head);
        path_tile_bounds(in.path, &t->stats.ranges, keys, coverage, &bounds);
        score_tile(in.path, &bounds.keys, t);
        softmax_grad_lanes(in.path, keys, coverage, t);
        (void)accumulate_owner(in.path, &t->dp, &t->k, &bounds.queries, t->dq.f32);
    }
    path_end(in.path);
    head_block_store(&call->out[0],
                     (HeadBlock){queries, head, sums_as_rows(in.path, t->dq.f32, t->k_buffer.f32)},
                     (StoreScale){(float)call->number[0], in.scale});
}

static Err dq_pass(const Call *call)
{
    const Tensor *q = &call->in[0];
    const int64_t tasks = blocks_of(q->n[0], BLOCK) * q->n[1];
    const ThreadWorkspaceSize size = {sizeof(DqWorkspace), "the gradient of queries"};
    return thread_workspace_run(call->team, tasks, size, dq_task, (void *)call);
}

/* One pass needs at least as many tasks (sequences x key heads) as threads. */
static bool takes_one_pass(const Call *call, Sequences *s)
{
    const int threads = call->team ? team_threads(call->team) : 1;
    return sequences_find(call, s) && call->in[1].n[1] * s->n >= threads;
}

Err CPU_NAME(attention_dx)(const Call *call)
{
    const int64_t channels = call->in[0].n[2];
    Sequences s;
    if (channels > MAX_CHANNELS || channels == 0)
        return ref_attention_dx(call); /* no model has such heads */
    if (takes_one_pass(call, &s)) return backward_one_pass(call, &s);
    TRY(dq_pass(call));
    return backward_dkv_pass(call);
}
