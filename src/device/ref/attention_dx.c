/* attention_dx.c -- the gradient of attention, from o and lse over all keys.
 *
 *     delta = dout . o         unless it is given
 *     p = exp(s - lse)         ds = p (dout v' - delta) scale
 *     dq = ds k                dk = ds' q               dv = p' dout
 *
 * Two sweeps over the same tiles: dq by blocks of queries, then dk and dv by blocks of keys, so
 * that each sum has one owner and one order. Both sweeps compute p and ds of a tile. */
#include "device/ref/attention.h"

#include <math.h>

typedef struct {
    const Tensor *q, *k, *v, *ranges, *dout, *lse, *o; /* o: or delta, with two dims */
} AttentionInputs;

typedef struct {
    double p[QUERIES][KEYS], ds[QUERIES][KEYS];
} ScoreTile;

static AttentionInputs inputs_of(const Call *call)
{
    const Tensor *in = call->in;
    return (AttentionInputs){&in[0], &in[1], &in[2], &in[3], &in[4], &in[5], &in[6]};
}

/* The average of dout v' with weights p: dout . o. */
static double row_delta(const Tensor *dout, const Tensor *o, int64_t token, int64_t head)
{
    double a[REF_CHUNK], b[REF_CHUNK], sum = 0;
    if (o->ndim == 2) return tensor_get(o, token * o->n[1] + head);
    for (int64_t from = 0; from < o->n[2]; from += REF_CHUNK) {
        const int64_t n = min_i64(o->n[2] - from, REF_CHUNK);
        row_load(head_row(dout, token, head), from, n, a);
        row_load(head_row(o, token, head), from, n, b);
        for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    }
    return sum;
}

static void delta_tile(void *work, int64_t token)
{
    const Call *call = work;
    const Tensor *delta = &call->out[0];
    for (int64_t h = 0; h < delta->n[1]; h++)
        tensor_set(delta, token * delta->n[1] + h, row_delta(&call->in[0], &call->in[1], token, h));
}

Err ref_attention_delta(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], delta_tile);
    return OK;
}

/* p and ds of a tile, 0 for keys that a row does not see. Returns false if no row sees any. */
static bool tile_gradient(const Call *call, Block queries, Block keys, int64_t head, ScoreTile *t)
{
    const AttentionInputs in = inputs_of(call);
    const double scale = call->attr.attention.scale;
    TileMask mask;
    if (!tile_mask(in.ranges, call->attr.attention.key_at, queries, keys, &mask)) return false;
    const int64_t source = key_head(call, head);
    tile_scores((HeadTokens){in.q, queries, head}, (HeadTokens){in.k, keys, source}, scale, &mask,
                t->p);
    tile_scores((HeadTokens){in.dout, queries, head}, (HeadTokens){in.v, keys, source}, 1, &mask,
                t->ds);
    for (int64_t i = 0; i < queries.n; i++) {
        const int64_t at = (queries.at + i) * in.q->n[1] + head;
        const double lse = tensor_get(in.lse, at);
        const double delta = row_delta(in.dout, in.o, queries.at + i, head);
        for (int r = 0; r < 2; r++)
            for (int j = mask.lo[i][r]; j < mask.hi[i][r]; j++) {
                t->p[i][j] = lse == -HUGE_VAL ? 0 : exp(t->p[i][j] - lse);
                t->ds[i][j] = t->p[i][j] == 0 ? 0 : t->p[i][j] * (t->ds[i][j] - delta) * scale;
            }
    }
    return true;
}

/* sum += factor * x, unless the factor is 0, which stands for a masked pair: x may be NaN there. */
static void add_times(double *sum, double factor, const double *x, int64_t n)
{
    if (factor == 0) return;
    for (int64_t c = 0; c < n; c++) sum[c] += factor * x[c];
}

/* One tile: a block of queries, a query head, a part of the channels. */
static void dq_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *q = &call->in[0], *k = &call->in[1], *dq = &call->out[0];
    const int64_t parts = blocks_of(q->n[2], CHANNELS), heads = q->n[1];
    const Block part = block_of(q->n[2], CHANNELS, tile % parts);
    const Block queries = block_of(q->n[0], QUERIES, tile / parts / heads);
    const int64_t head = tile / parts % heads;

    ScoreTile t;
    double sum[QUERIES][CHANNELS] = {{0}}, x[CHANNELS];
    for (int64_t b = 0; b < blocks_of(key_count(call), KEYS); b++) {
        const Block keys = block_of(k->n[0], KEYS, b);
        if (!tile_gradient(call, queries, keys, head, &t)) continue;
        for (int64_t j = 0; j < keys.n; j++) {
            row_load(head_row(k, keys.at + j, key_head(call, head)), part.at, part.n, x);
            for (int64_t i = 0; i < queries.n; i++) add_times(sum[i], t.ds[i][j], x, part.n);
        }
    }
    for (int64_t i = 0; i < queries.n; i++)
        row_keep(head_row(dq, queries.at + i, head), part.at, part.n, call->number[0], sum[i]);
}

typedef struct {
    double dk[KEYS][CHANNELS], dv[KEYS][CHANNELS];
} KeySums;

/* Adds the contributions of the queries of one head to a block of keys. */
static void add_head(const Call *call, Block keys, int64_t head, Block part, KeySums *sums)
{
    const Tensor *q = &call->in[0], *dout = &call->in[4];
    ScoreTile t;
    double x[CHANNELS];
    for (int64_t b = 0; b < blocks_of(q->n[0], QUERIES); b++) {
        const Block queries = block_of(q->n[0], QUERIES, b);
        if (!tile_gradient(call, queries, keys, head, &t)) continue;
        for (int64_t i = 0; i < queries.n; i++) {
            row_load(head_row(q, queries.at + i, head), part.at, part.n, x);
            for (int64_t j = 0; j < keys.n; j++) add_times(sums->dk[j], t.ds[i][j], x, part.n);
            row_load(head_row(dout, queries.at + i, head), part.at, part.n, x);
            for (int64_t j = 0; j < keys.n; j++) add_times(sums->dv[j], t.p[i][j], x, part.n);
        }
    }
}

/* One tile: a block of keys, a key head, a part of the channels. The query heads that read it are
 * summed in order. */
static void dkv_tile(void *work, int64_t tile)
{
    const Call *call = work;
    const Tensor *k = &call->in[1];
    const int64_t parts = blocks_of(k->n[2], CHANNELS), heads = k->n[1];
    const Block part = block_of(k->n[2], CHANNELS, tile % parts);
    const Block keys = block_of(k->n[0], KEYS, tile / parts / heads);
    const int64_t head = tile / parts % heads;
    const Heads readers = key_readers(call, head);

    KeySums sums = {{{0}}, {{0}}};
    for (int64_t h = readers.from; h < readers.to; h++) add_head(call, keys, h, part, &sums);
    for (int64_t j = 0; j < keys.n; j++) {
        const int64_t key = keys.at + j;
        row_keep(head_row(&call->out[1], key, head), part.at, part.n, call->number[1], sums.dk[j]);
        row_keep(head_row(&call->out[2], key, head), part.at, part.n, call->number[2], sums.dv[j]);
    }
}

Err ref_attention_dx(const Call *call)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    const int64_t parts = blocks_of(q->n[2], CHANNELS);
    ref_tiles(call, blocks_of(q->n[0], QUERIES) * q->n[1] * parts, dq_tile);
    ref_tiles(call, blocks_of(k->n[0], KEYS) * k->n[1] * parts, dkv_tile);
    return OK;
}
