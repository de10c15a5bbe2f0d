/* context_cost.c -- the seconds of a candidate of parallel.context=auto.
 *
 *     gather            all-gathers, one attention, all-gathers, its gradient, reduce-scatters
 *     a plan            its lists, played (context_clock.c)
 *     heads over U      before and after either, all-to-alls among U ranks
 *
 * Only attention and its transfers are counted, since the rest of a layer is the same with all
 * candidates. Sequences count as one document each, the worst case. */
#include "job/context_clock.h"
#include "job/job_parts.h"

static int64_t at_least_one(int64_t n) { return n < 1 ? 1 : n; }
static int64_t share(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }

static ContextLoad load_of(const JobSettings *s, const CostRates *rates, int heads)
{
    const ModelConfig *m = s->config;
    const int64_t tp = at_least_one(s->parallel.mesh.tp);
    return (ContextLoad){.rates = rates,
                         .dtype = s->dtype,
                         .stride = (int)(tp * heads),
                         .sequences = (double)at_least_one(s->batch.sequences),
                         .seq_len = (double)s->batch.seq_len,
                         .window = (double)m->window,
                         .heads = (double)share(share(m->n_heads, tp), heads),
                         .key_heads = (double)share(share(m->n_kv_heads, tp), heads),
                         .head_width = (double)m->head_size};
}

/* Seconds of a collective over the ranks of a plan; `bytes` as in cost_transfer_seconds. */
static double collective_s(const ContextLoad *l, CommKind kind, int ranks, int stride, double bytes)
{
    return cost_transfer_seconds(l->rates, kind, cost_group_strided(l->rates, ranks, stride),
                                 bytes);
}

/* Keys of all tokens on every rank. Nothing hides the gathers: they are what attention waits for,
 * and their reduction is what the projections before it wait for. */
static void gather_time(const ContextLoad *l, const ContextShape *shape, bool again,
                        ContextTime *out)
{
    const double type = (double)dtype_bytes(l->dtype), rows = l->sequences * l->seq_len;
    const double bytes = rows * l->key_heads * l->head_width * type;
    const double gather = collective_s(l, COMM_ALL_GATHER, shape->ranks, l->stride, bytes);
    const double scatter = collective_s(l, COMM_REDUCE_SCATTER, shape->ranks, l->stride, bytes);
    double most = 0;
    for (int rank = 0; rank < shape->ranks; rank++) {
        double pairs = 0;
        for (int k = 0; k < shape->ranks; k++)
            pairs += context_pairs(shape, l, block_whole(rank), block_whole(k));
        most = pairs > most ? pairs : most;
    }
    out->moving_s = out->wait_s = 2 * (gather + (again ? gather : 0) + scatter);
    out->held_bytes = 4 * bytes * (shape->ranks - 1) / shape->ranks;
    out->seconds = out->wait_s;
    for (int backward = 0; backward < 2; backward++)
        out->seconds += context_visit_seconds(l, backward, rows / shape->ranks, rows, most);
}

/* q, k, v and o change from tokens to heads or back, forward and backward. A key head that several
 * ranks read is sent to each of them. */
static void add_all_to_alls(const ContextLoad *l, int cp, int heads, ContextTime *out)
{
    const double type = (double)dtype_bytes(l->dtype);
    const double tokens = l->sequences * l->seq_len / cp * l->head_width * type * heads;
    const int stride = l->stride / heads;
    const double q = collective_s(l, COMM_ALL_TO_ALL, heads, stride, tokens * l->heads);
    const double k = collective_s(l, COMM_ALL_TO_ALL, heads, stride, tokens * l->key_heads);
    out->seconds += 4 * (q + k);
    out->moving_s += 4 * (q + k);
    out->wait_s += 4 * (q + k);
    out->held_bytes += 2 * tokens * (l->heads + l->key_heads) * (heads - 1) / heads;
}

/* One rank has all tokens of its heads. */
static void whole_time(const ContextLoad *l, bool causal, ContextTime *out)
{
    const ContextShape one = {.ranks = 1, .tokens = TOKENS_CONTIGUOUS, .causal = causal};
    const double rows = l->sequences * l->seq_len;
    const double pairs = context_pairs(&one, l, block_whole(0), block_whole(0));
    for (int backward = 0; backward < 2; backward++)
        out->seconds += context_visit_seconds(l, backward, rows, rows, pairs);
}

static Err plan_time(const ContextRow *row, const ContextShape *shape, const ContextLoad *l,
                     Arena *temp, ContextTime *out)
{
    ContextPlan plan[2];
    TRY(context_plan(row, shape, temp, &plan[0]));
    TRY(context_backward(&plan[0], temp, &plan[1]));
    for (int backward = 0; backward < 2; backward++) {
        ContextTime t;
        TRY(context_clock(&plan[backward], l, temp, &t));
        out->seconds += t.seconds;
        out->moving_s += t.moving_s;
        out->wait_s += t.wait_s;
        if (t.held_bytes > out->held_bytes) out->held_bytes = t.held_bytes;
    }
    return OK;
}

Err job_context_cost(const JobSettings *s, Arena *temp, ContextCandidate *c)
{
    const int cp = s->parallel.mesh.cp, ring = cp / c->heads;
    const CostRates rates = job_context_rates(s);
    const ContextLoad l = load_of(s, &rates, c->heads);
    const ContextShape shape = {ring, c->inner, c->tokens, !s->config->full_mask};
    const size_t mark = arena_mark(temp);
    ContextTime t = {0};
    const ContextRow *row;
    if (ring == 1)
        whole_time(&l, shape.causal, &t);
    else if (c->kind == CONTEXT_GATHER)
        gather_time(&l, &shape, !s->parallel.keep_gathered, &t);
    else {
        TRY(context_row(context_name(c->kind), temp, &row));
        TRY(plan_time(row, &shape, &l, temp, &t));
    }
    if (c->heads > 1) add_all_to_alls(&l, cp, c->heads, &t);
    c->seconds = t.seconds * (double)s->config->n_layers;
    c->moving_s = t.moving_s;
    c->hidden = t.moving_s > 0 ? 1 - (t.wait_s < t.moving_s ? t.wait_s / t.moving_s : 1) : 0;
    c->held_bytes = t.held_bytes;
    arena_rewind(temp, mark);
    return OK;
}
