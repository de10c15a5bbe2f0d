/* attention_passes.c -- attention in two passes: scores of all keys are kept, then values are
 * weighed; and their gradients. */
#include "device/ref/attention.h"

#include <math.h>

/* a . b, over the channels of two rows. */
static double dot_rows(RowRef a, RowRef b, int64_t channels)
{
    double x[REF_CHUNK], y[REF_CHUNK], sum = 0;
    for (int64_t from = 0; from < channels; from += REF_CHUNK) {
        const int64_t n = min_i64(channels - from, REF_CHUNK);
        row_load(a, from, n, x);
        row_load(b, from, n, y);
        for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    }
    return sum;
}

/* Score, or its gradient, of row t with key j. */
static double score_at(const Tensor *s, int64_t t, int64_t h, int64_t j)
{
    double x;
    row_load(head_row(s, t, h), j, 1, &x);
    return x;
}

/* The weight of the key: 0 if row t does not see it. */
static double weight_at(const Call *call, int64_t t, int64_t h, int64_t j)
{
    const double s = score_at(&call->in[0], t, h, j);
    const double lse = tensor_get(&call->in[1], t * call->in[1].n[1] + h);
    return s == -HUGE_VAL || lse == -HUGE_VAL ? 0 : exp(s - lse);
}

static bool sees(const Tensor *ranges, int64_t t, int64_t key)
{
    const int32_t *r = (const int32_t *)ranges->data + t * ranges->stride[0];
    const int64_t step = ranges->stride[1];
    return (key >= r[0] && key < r[step]) || (key >= r[2 * step] && key < r[3 * step]);
}

static void scores_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0], *k = &call->in[1], *s = &call->out[0], *lse = &call->out[1];
    const int64_t t = tile / q->n[1], h = tile % q->n[1];
    double max = call->number[1] == 0 ? -HUGE_VAL : tensor_get(lse, tile);
    double sum = max == -HUGE_VAL ? 0 : 1; /* of exp(s - max) */
    for (int64_t j = 0; j < k->n[0]; j++) {
        double x = -HUGE_VAL;
        if (sees(&call->in[2], t, call->attr.attention.key_at + j))
            x = call->attr.attention.scale *
                dot_rows(head_row(q, t, h), head_row(k, j, h), q->n[2]);
        row_store(head_row(s, t, h), j, 1, &x);
        if (x == -HUGE_VAL) continue;
        sum = x > max ? sum * exp(max - x) + 1 : sum + exp(x - max);
        max = x > max ? x : max;
    }
    tensor_set(lse, tile, max + log(sum));
}

Err ref_attention_scores(const Call *call)
{
    ref_tiles(call, call->in[0].n[0] * call->in[0].n[1], scores_tile);
    return OK;
}

/* sum[c] += factor * x[c], unless the factor is 0, which stands for a masked pair. */
static void add_row(double *sum, double factor, RowRef x, int64_t from, int64_t n)
{
    double y[REF_CHUNK];
    if (factor == 0) return;
    row_load(x, from, n, y);
    for (int64_t c = 0; c < n; c++) sum[c] += factor * y[c];
}

/* Row t of y gets the sum over keys j of factor(t, j) times row j of x; or, with `by_key`, row j of
 * y gets the sum over rows t of the same factor times row t of x. */
typedef struct {
    const Call *call;
    double (*factor)(const Call *call, int64_t t, int64_t h, int64_t j);
    const Tensor *x, *y;
    bool by_key;
    double keep;
} FactorSums;

static void sums_tile(void *work, int64_t tile)
{
    const FactorSums *w = work;
    const int64_t row = tile / w->y->n[1], h = tile % w->y->n[1], channels = w->y->n[2];
    for (int64_t from = 0; from < channels; from += REF_CHUNK) {
        const int64_t n = min_i64(channels - from, REF_CHUNK);
        double sum[REF_CHUNK] = {0};
        for (int64_t i = 0; i < w->x->n[0]; i++)
            add_row(sum, w->by_key ? w->factor(w->call, i, h, row) : w->factor(w->call, row, h, i),
                    head_row(w->x, i, h), from, n);
        row_keep(head_row(w->y, row, h), from, n, w->keep, sum);
    }
}

static void run_sums(FactorSums w)
{
    const int64_t tiles = w.y->n[0] * w.y->n[1];
    if (tiles > 0) team_run(w.call->team, tiles, sums_tile, &w);
}

Err ref_attention_weigh(const Call *call)
{
    run_sums((FactorSums){call, weight_at, &call->in[2], &call->out[0], false, call->number[0]});
    return OK;
}

static void weigh_dx_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *v = &call->in[2], *dout = &call->in[3], *ds = &call->out[0];
    const int64_t t = tile / dout->n[1], h = tile % dout->n[1];
    const double delta = tensor_get(&call->in[4], tile), scale = call->attr.attention.scale;
    for (int64_t j = 0; j < v->n[0]; j++) {
        const double weight = weight_at(call, t, h, j);
        double x = 0;
        if (weight != 0)
            x = weight * scale *
                (dot_rows(head_row(dout, t, h), head_row(v, j, h), v->n[2]) - delta);
        row_store(head_row(ds, t, h), j, 1, &x);
    }
}

Err ref_attention_weigh_dx(const Call *call)
{
    const Tensor *dout = &call->in[3];
    ref_tiles(call, dout->n[0] * dout->n[1], weigh_dx_tile);
    run_sums((FactorSums){call, weight_at, dout, &call->out[1], true, call->number[1]});
    return OK;
}

static double slope_at(const Call *call, int64_t t, int64_t h, int64_t j)
{
    return score_at(&call->in[0], t, h, j);
}

Err ref_attention_scores_dx(const Call *call)
{
    const Tensor *q = &call->in[1], *k = &call->in[2];
    run_sums((FactorSums){call, slope_at, k, &call->out[0], false, call->number[0]});
    run_sums((FactorSums){call, slope_at, q, &call->out[1], true, call->number[1]});
    return OK;
}
