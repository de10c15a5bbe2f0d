/* passes.c -- attention in two passes that keeps its scores, and its gradients.
 *
 * All are products of tiles of SIDE x SIDE in f32, for one head:
 *
 *     scores       q k'                 weigh        weights v        weights = exp(scores - lse)
 *     weigh_dx     dout v', weights' dout            scores_dx        ds k, ds' q
 *
 * A tile of weights is made from the scores where it is needed. Attention without kept scores
 * (forward.c, backward.c) is faster; these kernels serve the plan that it is compared with. */
#include "device/cpu/simd/simd.h"
#include "device/cpu/simd/math.h"

enum { SIDE = 64 };
typedef float Tile[SIDE][SIDE];

typedef struct {
    int64_t at, n;
} Part;

static Part part_of(int64_t n, int64_t index)
{
    return (Part){index * SIDE, min_i64(n - index * SIDE, SIDE)};
}

static RowRef row_of(const Tensor *x, int64_t row, int64_t head)
{
    return row_at(x, row * x->stride[0] + head * x->stride[1], x->stride[2]);
}

/* Rows and columns of x[row,head,column]; past them the tile is `rest`. */
static void load_tile(const Tensor *x, int64_t head, Part rows, Part columns, float rest, Tile out)
{
    for (int64_t i = 0; i < SIDE; i++) {
        const int64_t n = i < rows.n ? columns.n : 0;
        if (n > 0) load_piece(row_of(x, rows.at + i, head), columns.at, n, out[i]);
        for (int64_t j = n; j < SIDE; j++) out[i][j] = rest;
    }
}

static void turn_tile(Tile x, Tile out)
{
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < SIDE; j++) out[j][i] = x[i][j];
}

/* sum += a b */
static void multiply_tiles(Tile a, Tile b, Tile sum)
{
    for (int64_t i = 0; i < SIDE; i++) {
        V row[SIDE / W];
        for (int64_t j = 0; j < SIDE / W; j++) row[j] = v_load(&sum[i][j * W]);
        for (int64_t k = 0; k < SIDE; k++) {
            const V factor = v_set(a[i][k]);
            for (int64_t j = 0; j < SIDE / W; j++) row[j] += factor * v_load(&b[k][j * W]);
        }
        for (int64_t j = 0; j < SIDE / W; j++) v_store(&sum[i][j * W], row[j]);
    }
}

/* The products of rows of x with rows of y, over all channels of a head. */
static void dot_tile(const Tensor *x, Part rows, const Tensor *y, Part columns, int64_t head,
                     Tile out)
{
    Tile a, b, turned;
    memset(out, 0, sizeof(Tile));
    for (int64_t p = 0; p < blocks_of(x->n[2], SIDE); p++) {
        const Part channels = part_of(x->n[2], p);
        load_tile(x, head, rows, channels, 0, a);
        load_tile(y, head, columns, channels, 0, b);
        turn_tile(b, turned);
        multiply_tiles(a, turned, out);
    }
}

/* ---- scores ---- */

typedef struct {
    float max[SIDE], sum[SIDE]; /* of exp(s - max) */
} SoftmaxSums;

/* Keys that the row does not see get -inf; the others are scaled. */
static void mask_row(const Call *call, int64_t t, Part keys, float *s)
{
    const Tensor *ranges = &call->in[2];
    const int32_t *r = (const int32_t *)ranges->data + t * ranges->stride[0];
    const int64_t step = ranges->stride[1], first = call->attr.attention.key_at + keys.at;
    const float scale = (float)call->attr.attention.scale;
    for (int64_t j = 0; j < SIDE; j++) {
        const int64_t key = first + j;
        const bool seen =
            (key >= r[0] && key < r[step]) || (key >= r[2 * step] && key < r[3 * step]);
        s[j] = seen && j < keys.n ? s[j] * scale : -HUGE_VALF;
    }
}

/* Weights of a row of scores: 0 where a score or the base is -inf. Returns their sum. */
static float weigh_row(const float *s, float base, float *out)
{
    V sum = v_set(0);
    if (base == -HUGE_VALF) base = 0; /* all scores are -inf too */
    for (int64_t j = 0; j < SIDE; j += W) {
        const V weight = v_exp(v_load(&s[j]) - base);
        v_store(&out[j], weight);
        sum += weight;
    }
    return v_sum(sum);
}

static void add_to_sums(SoftmaxSums *w, int64_t i, const float *s)
{
    float scratch[SIDE], max = w->max[i];
    for (int64_t j = 0; j < SIDE; j++) max = s[j] > max ? s[j] : max;
    if (max == -HUGE_VALF) return;
    if (w->max[i] > -HUGE_VALF) w->sum[i] *= expf(w->max[i] - max);
    w->max[i] = max;
    w->sum[i] += weigh_row(s, max, scratch);
}

static void scores_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0], *k = &call->in[1], *s = &call->out[0], *lse = &call->out[1];
    const int64_t head = tile % q->n[1];
    const Part rows = part_of(q->n[0], tile / q->n[1]);
    SoftmaxSums sums = {{0}, {0}};
    Tile x;
    for (int64_t i = 0; i < rows.n; i++) {
        const bool carry = call->number[1] != 0;
        sums.max[i] = carry ? (float)tensor_get(lse, (rows.at + i) * q->n[1] + head) : -HUGE_VALF;
        sums.sum[i] = sums.max[i] > -HUGE_VALF;
    }
    for (int64_t b = 0; b < blocks_of(k->n[0], SIDE); b++) {
        const Part keys = part_of(k->n[0], b);
        dot_tile(q, rows, k, keys, head, x);
        for (int64_t i = 0; i < rows.n; i++) {
            mask_row(call, rows.at + i, keys, x[i]);
            add_to_sums(&sums, i, x[i]);
            store_piece(row_of(s, rows.at + i, head), keys.at, keys.n, x[i]);
        }
    }
    for (int64_t i = 0; i < rows.n; i++)
        tensor_set(lse, (rows.at + i) * q->n[1] + head,
                   (double)sums.max[i] + log((double)sums.sum[i]));
}

Err CPU_NAME(attention_scores)(const Call *call)
{
    const Tensor *q = &call->in[0];
    const int64_t tiles = blocks_of(q->n[0], SIDE) * q->n[1];
    if (tiles > 0) team_run(call->team, tiles, scores_tile, (void *)call);
    return OK;
}

/* ---- sums of rows, weighed ---- */

static void weights_tile(const Call *call, Part rows, Part keys, int64_t head, Tile out)
{
    const Tensor *lse = &call->in[1];
    load_tile(&call->in[0], head, rows, keys, -HUGE_VALF, out);
    for (int64_t i = 0; i < SIDE; i++) {
        const int64_t at = (rows.at + i) * lse->n[1] + head;
        weigh_row(out[i], i < rows.n ? (float)tensor_get(lse, at) : 0, out[i]);
    }
}

static void slopes_tile(const Call *call, Part rows, Part keys, int64_t head, Tile out)
{
    load_tile(&call->in[0], head, rows, keys, 0, out);
}

/* y = keep * y + factors x, or the transpose of the factors by x: then rows of y are keys. */
typedef struct {
    const Call *call;
    void (*factors)(const Call *call, Part rows, Part keys, int64_t head, Tile out);
    const Tensor *x, *y;
    bool by_key;
    float keep;
} WeighedSum;

static void sum_tile(void *work, int64_t tile)
{
    const WeighedSum *w = work;
    const int64_t parts = blocks_of(w->y->n[2], SIDE), head = tile / parts % w->y->n[1];
    const Part rows = part_of(w->y->n[0], tile / parts / w->y->n[1]);
    const Part channels = part_of(w->y->n[2], tile % parts);
    Tile sum = {{0}}, a, turned, b;
    for (int64_t i = 0; i < blocks_of(w->x->n[0], SIDE); i++) {
        const Part from = part_of(w->x->n[0], i);
        w->factors(w->call, w->by_key ? from : rows, w->by_key ? rows : from, head, a);
        if (w->by_key) turn_tile(a, turned);
        load_tile(w->x, head, from, channels, 0, b);
        multiply_tiles(w->by_key ? turned : a, b, sum);
    }
    for (int64_t i = 0; i < rows.n; i++)
        keep_piece(row_of(w->y, rows.at + i, head), channels.at, channels.n, w->keep, sum[i]);
}

static void run_sum(WeighedSum w)
{
    const Tensor *y = w.y;
    const int64_t tiles = blocks_of(y->n[0], SIDE) * y->n[1] * blocks_of(y->n[2], SIDE);
    if (tiles > 0) team_run(w.call->team, tiles, sum_tile, &w);
}

Err CPU_NAME(attention_weigh)(const Call *call)
{
    run_sum((WeighedSum){call, weights_tile, &call->in[2], &call->out[0], false,
                         (float)call->number[0]});
    return OK;
}

/* ds = weights (dout v' - delta) scale */
static void weigh_dx_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *v = &call->in[2], *dout = &call->in[3], *ds = &call->out[0];
    const int64_t head = tile % dout->n[1];
    const Part rows = part_of(dout->n[0], tile / dout->n[1]);
    const float scale = (float)call->attr.attention.scale;
    Tile weights, x;
    for (int64_t b = 0; b < blocks_of(v->n[0], SIDE); b++) {
        const Part keys = part_of(v->n[0], b);
        weights_tile(call, rows, keys, head, weights);
        dot_tile(dout, rows, v, keys, head, x);
        for (int64_t i = 0; i < rows.n; i++) {
            const int64_t at = (rows.at + i) * dout->n[1] + head;
            const V delta = v_set((float)tensor_get(&call->in[4], at));
            for (int64_t j = 0; j < SIDE; j += W)
                v_store(&x[i][j], v_load(&weights[i][j]) * (v_load(&x[i][j]) - delta) * scale);
            store_piece(row_of(ds, rows.at + i, head), keys.at, keys.n, x[i]);
        }
    }
}

Err CPU_NAME(attention_weigh_dx)(const Call *call)
{
    const Tensor *dout = &call->in[3];
    const int64_t tiles = blocks_of(dout->n[0], SIDE) * dout->n[1];
    if (tiles > 0) team_run(call->team, tiles, weigh_dx_tile, (void *)call);
    run_sum((WeighedSum){call, weights_tile, dout, &call->out[1], true, (float)call->number[1]});
    return OK;
}

Err CPU_NAME(attention_scores_dx)(const Call *call)
{
    const Tensor *q = &call->in[1], *k = &call->in[2];
    run_sum((WeighedSum){call, slopes_tile, k, &call->out[0], false, (float)call->number[0]});
    run_sum((WeighedSum){call, slopes_tile, q, &call->out[1], true, (float)call->number[1]});
    return OK;
}
