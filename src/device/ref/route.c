/* route.c -- the router: choices and gates of each token, and the gradient of its logits with that
 * of its losses. device/route.h has the formulas. */
#include "device/ref/ref.h"

#include <string.h>
#include "device/route.h"

/* Tiles follow from the number of tokens; there are at most PARTS, each with sums of its own. */
enum { TOKENS = 16, PARTS = 256 };

typedef struct {
    const Call *call;
    int64_t each; /* tokens of a part */
    double weight[MAX_EXPERTS];
    RouteLosses sum[PARTS];
} RouteWork;

static void load_row(const Tensor *t, int64_t row, int64_t n, double *x)
{
    for (int64_t from = 0; from < n; from += REF_CHUNK)
        row_load(tensor_row(t, row), from, min_i64(n - from, REF_CHUNK), x + from);
}

static void store_row(const Tensor *t, int64_t row, int64_t n, const double *x)
{
    for (int64_t from = 0; from < n; from += REF_CHUNK)
        row_store(tensor_row(t, row), from, min_i64(n - from, REF_CHUNK), x + from);
}

static int32_t *int_row(const Tensor *t, int64_t row)
{
    return (int32_t *)t->data + row * t->stride[0];
}

static void check_experts(int64_t experts)
{
    MUST(experts <= MAX_EXPERTS, "a router of %lld experts; at most %d are possible",
         (long long)experts, MAX_EXPERTS);
}

static void route_part(void *work, int64_t part)
{
    const RouteWork *w = work;
    const Call *call = w->call;
    const Tensor *s = &call->in[0], *gate = &call->out[0], *expert = &call->out[1];
    const int64_t n = s->n[1], k = gate->n[1], end = min_i64((part + 1) * w->each, s->n[0]);
    double x[MAX_EXPERTS], p[MAX_EXPERTS], bias[MAX_EXPERTS], score[MAX_EXPERTS], sum;
    int32_t chosen[MAX_EXPERTS];
    if (call->n_in > 1) load_row(&call->in[1], 0, n, bias);
    for (int64_t t = part * w->each; t < end; t++) {
        load_row(s, t, n, x);
        route_choose(&call->attr, x, call->n_in > 1 ? bias : NULL, n, k, p, chosen);
        route_scores(&call->attr, x, n, chosen, k, p, score);
        const double factor = route_factor(&call->attr, score, k, &sum);
        for (int64_t i = 0; i < k; i++) {
            score[i] *= factor;
            int_row(expert, t)[i * expert->stride[1]] = chosen[i];
        }
        store_row(gate, t, k, score);
    }
}

static int64_t part_tokens(int64_t tokens)
{
    return blocks_of(blocks_of(tokens, PARTS), TOKENS) * TOKENS;
}

/* Adds the choices of all tokens to count[experts]. */
static void count_choices(const Tensor *expert, double *count)
{
    for (int64_t t = 0; t < expert->n[0]; t++)
        for (int64_t i = 0; i < expert->n[1]; i++)
            count[int_row(expert, t)[i * expert->stride[1]]]++;
}

Err ref_route(const Call *call)
{
    const Tensor *s = &call->in[0], *load = &call->out[2];
    RouteWork w = {.call = call, .each = part_tokens(s->n[0])};
    double count[MAX_EXPERTS] = {0};
    check_experts(s->n[1]);
    if (s->n[0] > 0) team_run(call->team, blocks_of(s->n[0], w.each), route_part, &w);
    count_choices(&call->out[1], count);
    store_row(load, 0, load->n[0], count);
    return OK;
}

static void route_dx_part(void *work, int64_t part)
{
    RouteWork *w = work;
    const Call *call = w->call;
    const Tensor *dgate = &call->in[0], *s = &call->in[1], *expert = &call->in[2];
    const int64_t n = s->n[1], k = dgate->n[1], end = min_i64((part + 1) * w->each, s->n[0]);
    double x[MAX_EXPERTS], dg[MAX_EXPERTS], ds[MAX_EXPERTS];
    int32_t chosen[MAX_EXPERTS];
    for (int64_t t = part * w->each; t < end; t++) {
        load_row(s, t, n, x);
        load_row(dgate, t, k, dg);
        for (int64_t i = 0; i < k; i++) chosen[i] = int_row(expert, t)[i * expert->stride[1]];
        memset(ds, 0, (size_t)n * sizeof *ds);
        route_add_dgate(&call->attr, x, n, chosen, k, dg, ds);
        const RouteLosses l = route_add_losses(&call->attr, x, n, w->weight, ds);
        w->sum[part].balance += l.balance;
        w->sum[part].z += l.z;
        store_row(&call->out[0], t, n, ds);
    }
}

/* E load[e] / (K T); all choices together are K T. */
static void balance_weights(const Tensor *load, int64_t n, double *weight)
{
    double all = 0;
    load_row(load, 0, n, weight);
    for (int64_t e = 0; e < n; e++) all += weight[e];
    for (int64_t e = 0; e < n && all > 0; e++) weight[e] *= (double)n / all;
}

static void write_stat(const RouteWork *w, int64_t parts)
{
    const Call *call = w->call;
    const Tensor *stat = &call->out[1];
    double x[MAX_EXPERTS + 2] = {0};
    for (int64_t i = 0; i < parts; i++) {
        x[0] += w->sum[i].balance;
        x[1] += w->sum[i].z;
    }
    count_choices(&call->in[2], x + 2);
    for (int64_t from = 0; from < stat->n[0]; from += REF_CHUNK)
        row_keep(tensor_row(stat, 0), from, min_i64(stat->n[0] - from, REF_CHUNK), call->number[1],
                 x + from);
}

Err ref_route_dx(const Call *call)
{
    const Tensor *s = &call->in[1];
    RouteWork w = {.call = call, .each = part_tokens(s->n[0])};
    const int64_t parts = s->n[0] > 0 ? blocks_of(s->n[0], w.each) : 0;
    check_experts(s->n[1]);
    balance_weights(&call->in[3], s->n[1], w.weight);
    if (parts > 0) team_run(call->team, parts, route_dx_part, &w);
    if (call->n_out > 1) write_stat(&w, parts);
    return OK;
}
