/* attention.c -- o = softmax(scale q k') v over the keys that each row sees, tile by tile (online
 * softmax).
 *
 * A row carries (max, sum, o) over the tiles: the sum of exp(s - max), and o with the same weights.
 * If a tile raises the max, sum and o are scaled by exp(old - new). At the end o /= sum and lse =
 * max + log(sum). Memory is O(1) in addition to the outputs. A call that carries on from other
 * blocks of keys starts at max = lse, sum = 1. */
#include "device/ref/attention.h"

#include <math.h>

typedef struct {
    double s[QUERIES][KEYS];
    double o[QUERIES][CHANNELS];
    double max[QUERIES], sum[QUERIES];
} SoftmaxState;

/* Converts scores to weights exp(s - max), and rescales the row to the new max. */
static void weigh_row(SoftmaxState *st, const TileMask *mask, int64_t i, int64_t channels)
{
    double max = st->max[i];
    for (int r = 0; r < 2; r++)
        for (int j = mask->lo[i][r]; j < mask->hi[i][r]; j++)
            if (st->s[i][j] > max) max = st->s[i][j];
    const double shrink = max > st->max[i] ? exp(st->max[i] - max) : 1;
    st->sum[i] *= shrink;
    for (int64_t c = 0; c < channels; c++) st->o[i][c] *= shrink;
    st->max[i] = max;
    for (int r = 0; r < 2; r++)
        for (int j = mask->lo[i][r]; j < mask->hi[i][r]; j++) {
            st->s[i][j] = st->s[i][j] == -HUGE_VAL ? 0 : exp(st->s[i][j] - max);
            st->sum[i] += st->s[i][j];
        }
}

/* o += weights v. A weight of 0 is a key that the row does not see, so v is not read there: it may
 * be NaN. */
static void add_values(SoftmaxState *st, const Tensor *v, Block queries, Block keys, int64_t head,
                       Block part)
{
    double x[CHANNELS];
    for (int64_t j = 0; j < keys.n; j++) {
        row_load(head_row(v, keys.at + j, head), part.at, part.n, x);
        for (int64_t i = 0; i < queries.n; i++) {
            const double weight = st->s[i][j];
            if (weight == 0) continue;
            for (int64_t c = 0; c < part.n; c++) st->o[i][c] += weight * x[c];
        }
    }
}

static void store_rows(const Call *call, SoftmaxState *st, Block queries, int64_t head, Block part)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    for (int64_t i = 0; i < queries.n; i++) {
        /* A row that saw no key: o is still 0, and its lse is -inf. */
        for (int64_t c = 0; c < part.n && st->max[i] > -HUGE_VAL; c++) st->o[i][c] /= st->sum[i];
        row_store(head_row(o, queries.at + i, head), part.at, part.n, st->o[i]);
        if (part.at == 0) /* lse has one writer */
            tensor_set(lse, (queries.at + i) * o->n[1] + head, st->max[i] + log(st->sum[i]));
    }
}

/* No key so far, or those of the calls before. */
static void open_rows(const Call *call, SoftmaxState *st, Block queries, int64_t head, Block part)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    for (int64_t i = 0; i < queries.n; i++) {
        st->max[i] = -HUGE_VAL;
        if (call->number[0] == 0) continue;
        st->max[i] = tensor_get(lse, (queries.at + i) * o->n[1] + head);
        if (st->max[i] == -HUGE_VAL) continue;
        st->sum[i] = 1;
        row_load(head_row(o, queries.at + i, head), part.at, part.n, st->o[i]);
    }
}

/* A block of queries, a query head, a part of the channels of o. */
static void attention_part(const Call *call, Block queries, int64_t head, Block part)
{
    const Tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2], *ranges = &call->in[3];
    SoftmaxState st = {.sum = {0}};
    open_rows(call, &st, queries, head, part);
    for (int64_t b = 0; b < blocks_of(key_count(call), KEYS); b++) {
        const Block keys = block_of(k->n[0], KEYS, b);
        TileMask mask;
        if (!tile_mask(ranges, call->attr.attention.key_at, queries, keys, &mask)) continue;
        const int64_t source = key_head(call, head);
        tile_scores((HeadTokens){q, queries, head}, (HeadTokens){k, keys, source},
                    call->attr.attention.scale, &mask, st.s);
        for (int64_t i = 0; i < queries.n; i++) weigh_row(&st, &mask, i, part.n);
        add_values(&st, v, queries, keys, source, part);
    }
    store_rows(call, &st, queries, head, part);
}

/* One tile: a block of queries and a query head. The part that writes lse is the last, since all
 * read what it overwrites. */
static void attention_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0];
    const Block queries = block_of(q->n[0], QUERIES, tile / q->n[1]);
    for (int64_t i = channel_parts(q) - 1; i >= 0; i--)
        attention_part(call, queries, tile % q->n[1], block_of(q->n[2], CHANNELS, i));
}

Err ref_attention(const Call *call)
{
    const Tensor *q = &call->in[0];
    ref_tiles(call, blocks_of(q->n[0], QUERIES) * q->n[1], attention_tile);
    return OK;
}

/* Shares of two parts with sums exp(a) and exp(b); returns the log of the total. A part without a
 * key (-inf) has share 0, and both parts may be such. */
static double merge_shares(double a, double b, double share[2])
{
    share[0] = a == -HUGE_VAL ? 0 : b == -HUGE_VAL ? 1 : 1 / (1 + exp(b - a));
    share[1] = b == -HUGE_VAL ? 0 : a == -HUGE_VAL ? 1 : 1 / (1 + exp(a - b));
    if (a == -HUGE_VAL || b == -HUGE_VAL) return a > b ? a : b;
    return (a > b ? a : b) + log1p(exp(-fabs(a - b)));
}

static void merge_tile(void *work, int64_t token)
{
    const Call *call = work;
    const Tensor *o = &call->out[0];
    for (int64_t head = 0; head < o->n[1]; head++) {
        const int64_t at = token * o->n[1] + head;
        double share[2];
        const double lse =
            merge_shares(tensor_get(&call->in[1], at), tensor_get(&call->in[3], at), share);
        tensor_set(&call->out[1], at, lse);
        for (int64_t from = 0; from < o->n[2]; from += REF_CHUNK) {
            const int64_t n = min_i64(o->n[2] - from, REF_CHUNK);
            double sum[REF_CHUNK] = {0}, x[REF_CHUNK];
            for (int p = 0; p < 2; p++) {
                if (share[p] == 0) continue; /* its values may be NaN */
                row_load(head_row(&call->in[2 * p], token, head), from, n, x);
                for (int64_t i = 0; i < n; i++) sum[i] += share[p] * x[i];
            }
            row_store(head_row(o, token, head), from, n, sum);
        }
    }
}

Err ref_attention_merge(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], merge_tile);
    return OK;
}
