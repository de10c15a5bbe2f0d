/* decode.c -- the decode path: few queries, each with many cached keys.
 *
 * A tile of 64 queries would be nearly empty. Instead, each task takes one query head of one query
 * and visits its keys KEYS_PER_STEP at a time: scores, the new maximum, weights, and the weighted
 * sum of the values. Vectors are along the channels, so k and v are read in place, each row once.
 *
 *     keys     |........|........|....|        (max, sum, o) carried from step to step */
#include "device/cpu/simd/attention/attention.h"

enum { KEYS_PER_STEP = 128, MAX_DECODE_QUERIES = 8 };

typedef struct {
    /* Zeros after the channels, up to a whole vector. */
    float q[MAX_CHANNELS], o[MAX_CHANNELS], buffer[MAX_CHANNELS];
    float s[KEYS_PER_STEP]; /* scores, then weights */
    float max, sum;
    int64_t channels, padded;
} DecodeState;

bool attention_is_decode(const Call *call)
{
    return call->in[0].n[0] <= MAX_DECODE_QUERIES && call->in[0].n[2] <= MAX_CHANNELS;
}

static float dot(const float *a, const float *b, int64_t n)
{
    V sum = {0};
    for (int64_t i = 0; i < n; i += W) sum += v_load(a + i) * v_load_to(b + i, n - i);
    return v_sum(sum);
}

static void rescale_to(DecodeState *st, float max)
{
    const V by = v_exp(v_set(st->max - max));
    for (int64_t c = 0; c < st->padded; c += W) v_store(st->o + c, by * v_load(st->o + c));
    st->sum *= by[0];
    st->max = max;
}

/* Adds n keys from row `key` on. */
static void add_keys(DecodeState *st, const Call *call, int64_t kv_head, int64_t key, int64_t n)
{
    const Tensor *k = &call->in[1], *v = &call->in[2];
    const float scale = (float)call->attr.attention.scale;
    float max = st->max;
    for (int64_t j = 0; j < n; j++) {
        __builtin_prefetch(head_row(k, key + min_i64(j + 4, n - 1), kv_head).at, 0, 2);
        __builtin_prefetch(head_row(v, key + j, kv_head).at, 0, 2);
        const float *row = read_piece(head_row(k, key + j, kv_head), 0, st->channels, st->buffer);
        st->s[j] = scale * dot(st->q, row, st->channels);
        if (!(st->s[j] <= max)) max = st->s[j]; /* also a NaN: its row must not count as masked */
    }
    if (max == -HUGE_VALF) return; /* scores of -inf have weight 0 */
    if (max > st->max) rescale_to(st, max);
    for (int64_t j = n; j < pad_to(n, W); j++) st->s[j] = -HUGE_VALF;
    V sum = {0};
    for (int64_t j = 0; j < n; j += W) {
        const V p = v_exp(v_load(st->s + j) - max);
        v_store(st->s + j, p);
        sum += p;
    }
    st->sum += v_sum(sum);
    for (int64_t j = 0; j < n; j++) {
        const float *row = read_piece(head_row(v, key + j, kv_head), 0, st->channels, st->buffer);
        for (int64_t c = 0; c < st->channels; c += W)
            v_store(st->o + c, v_load(st->o + c) + st->s[j] * v_load_to(row + c, st->channels - c));
    }
}

/* What calls for other blocks of keys have left. */
static void carry_row(DecodeState *st, const Call *call, int64_t query, int64_t head)
{
    const Tensor *o = &call->out[0], *lse = &call->out[1];
    st->max = (float)tensor_get(lse, query * o->n[1] + head);
    if (st->max == -HUGE_VALF) return;
    st->sum = 1;
    load_piece(head_row(o, query, head), 0, st->channels, st->o);
}

/* A task: one query head of one query. */
static void decode_task(void *work, int64_t task)
{
    const Call *call = work;
    const Tensor *q = &call->in[0], *o = &call->out[0], *lse = &call->out[1];
    const int64_t query = task / q->n[1], head = task % q->n[1], keys = key_count(call);
    DecodeState st = {.max = -HUGE_VALF, .channels = q->n[2], .padded = pad_to(q->n[2], W)};
    Ranges ranges;
    load_piece(head_row(q, query, head), 0, st.channels, st.q);
    if (call->number[0] != 0) carry_row(&st, call, query, head);
    ranges_load(&call->in[3], call->attr.attention.key_at, keys, (TokenBlock){query, 1}, &ranges);
    for (int r = 0; r < 2; r++) {
        const int64_t lo = ranges.lo[r][0], hi = ranges.hi[r][0];
        for (int64_t key = lo; key < hi; key += KEYS_PER_STEP)
            add_keys(&st, call, key_head(call, head), key, min_i64(hi - key, KEYS_PER_STEP));
    }
    /* A query that attends to no key: o = 0 and lse = -inf. */
    const float factor = st.sum == 0 ? 0 : 1 / st.sum;
    for (int64_t c = 0; c < st.padded; c += W) v_store(st.o + c, factor * v_load(st.o + c));
    store_piece(head_row(o, query, head), 0, st.channels, st.o);
    tensor_set(lse, query * o->n[1] + head, (double)st.max + log((double)st.sum));
}

void attention_decode(const Call *call)
{
    ref_tiles(call, call->in[0].n[0] * call->in[0].n[1], decode_task);
}
