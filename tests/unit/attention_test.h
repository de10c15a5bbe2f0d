/* attention_test.h -- masks, sizes and the definition of attention, for tests of its kernels. */
#ifndef TESTS_UNIT_ATTENTION_TEST_H
#define TESTS_UNIT_ATTENTION_TEST_H

#include "kernel_test.h"

typedef enum { FULL, CAUSAL, PACKED, WINDOW, TWO_RANGES, HOLES, NO_KEYS, N_MASKS } Mask;

static inline int larger(int a, int b) { return a > b ? a : b; }

/* The two ranges of query t of `queries`; the last query is at the position of the last key. */
static inline void mask_row(Mask mask, int t, int queries, int keys, int range[4])
{
    const int end = t + 1 + keys - queries, document = end > 40 ? 40 : end > 13 ? 13 : 0;
    const int rows[N_MASKS][4] = {
        [FULL] = {0, keys, 0, 0},
        [CAUSAL] = {0, end, 0, 0},
        [PACKED] = {document, end, 0, 0},
        [WINDOW] = {larger(end - 9, 0), end, 0, 0},
        [TWO_RANGES] = {larger(end - 6, 3), larger(end, 3), 0, 3}, /* not in order */
        [HOLES] = {5, 5, 0, end},
        [NO_KEYS] = {9, 9, keys + 5, keys + 50}, /* ranges past the last key */
    };
    const int none[3][4] = {{0, 0, 0, 0}, {7, 7, 3, 3}, {keys + 4, keys + 90, 8, 2}};
    const bool hole = mask == HOLES && (t % 4 == 1 || (t >= 32 && t < 70)); /* a whole tile, too */
    memcpy(range, hole ? none[t % 3] : rows[mask], 4 * sizeof *range);
}

static inline bool sees(const Tensor *ranges, int64_t t, int64_t key)
{
    const int32_t *r = (const int32_t *)ranges->data;
    for (int k = 0; k < 2; k++) {
        const int64_t at = t * ranges->stride[0] + 2 * k * ranges->stride[1];
        if (key >= r[at] && key < r[at + ranges->stride[1]]) return true;
    }
    return false;
}

/* t queries, s keys, h query heads, g key heads, c channels. */
typedef struct {
    DType type;
    Strides strides;
    int64_t t, s, h, g, c;
    Tensor q, k, v, ranges, o, lse;
    Attr attr;
} Case;

static inline Tensor mask_tensor(Bench *b, Mask mask, int64_t t, int64_t s, Strides strides)
{
    const Tensor ranges = NEW(b, I32, strides, t, 4);
    for (int64_t i = 0; i < t; i++) {
        int range[4];
        mask_row(mask, (int)i, (int)t, (int)s, range);
        for (int r = 0; r < 4; r++) put(&ranges, 4 * i + r, range[r]);
    }
    return ranges;
}

/* Fills in the tensors of a case. On DENSE, q, k and v are views of one buffer if sizes allow. */
static inline void case_open(Bench *b, Case *c, Mask mask, double size)
{
    c->attr.attention.scale = 0.4;
    c->attr.attention.key_at = 0;
    c->ranges = mask_tensor(b, mask, c->t, c->s, c->strides);
    if (c->strides == DENSE && c->s == c->t) {
        Tensor all = RANDOM(b, c->type, DENSE, c->t, c->h + 2 * c->g, c->c);
        fill(b, &all, size);
        c->q = c->k = c->v = all;
        c->q.n[1] = c->h;
        c->k.n[1] = c->v.n[1] = c->g;
        c->k.data = (char *)all.data + (size_t)(c->h * c->c) * dtype_bytes(c->type);
        c->v.data = (char *)c->k.data + (size_t)(c->g * c->c) * dtype_bytes(c->type);
    } else {
        c->q = RANDOM(b, c->type, c->strides, c->t, c->h, c->c);
        c->k = RANDOM(b, c->type, (Strides)((c->strides + 1) % N_STRIDES), c->s, c->g, c->c);
        c->v = RANDOM(b, c->type, (Strides)((c->strides + 2) % N_STRIDES), c->s, c->g, c->c);
        fill(b, &c->q, size);
        fill(b, &c->k, size);
    }
    c->o = NEW(b, c->type, (Strides)((c->strides + 1) % N_STRIDES), c->t, c->h, c->c);
    c->lse = NEW(b, dtype_wide(c->type), (Strides)((c->strides + 2) % N_STRIDES), c->t, c->h);
}

/* Sizes for tests of attention kernels. */
static const Case attention_sizes[] = {
    {.t = 45, .s = 77, .h = 6, .g = 2, .c = 5},  /* partial blocks of both */
    {.t = 75, .s = 75, .h = 3, .g = 3, .c = 4},  /* views of one buffer */
    {.t = 7, .s = 35, .h = 4, .g = 1, .c = 133}, /* more channels than a tile of ref */
    {.t = 0, .s = 5, .h = 2, .g = 1, .c = 3},
    {.t = 5, .s = 0, .h = 2, .g = 1, .c = 3}, /* no keys: o = 0, lse = -inf */
    /* shards of 8 heads over 2 key heads, of 9 over 3, of 10 over 2, split within groups */
    {.t = 38, .s = 41, .h = 3, .g = 2, .c = 5, .attr = {.attention = {.group = 4, .head_at = 3}}},
    {.t = 38, .s = 38, .h = 2, .g = 1, .c = 6, .attr = {.attention = {.group = 4, .head_at = 2}}},
    {.t = 9, .s = 13, .h = 5, .g = 3, .c = 7, .attr = {.attention = {.group = 3, .head_at = 2}}},
    {.t = 9, .s = 13, .h = 1, .g = 2, .c = 4, .attr = {.attention = {.group = 5, .head_at = 4}}},
    /* shards without heads, without key heads, without channels */
    {.t = 6, .s = 4, .h = 0, .g = 2, .c = 3},
    {.t = 6, .s = 4, .h = 0, .g = 2, .c = 3, .attr = {.attention = {.group = 4, .head_at = 1}}},
    {.t = 6, .s = 4, .h = 3, .g = 0, .c = 5},
    {.t = 6, .s = 4, .h = 0, .g = 0, .c = 3},
    {.t = 6, .s = 40, .h = 4, .g = 2, .c = 0},
};
enum { N_SIZES = sizeof attention_sizes / sizeof attention_sizes[0] };

static inline Call attention_call(const Case *c)
{
    return (Call){.in = {c->q, c->k, c->v, c->ranges},
                  .n_in = 4,
                  .out = {c->o, c->lse},
                  .n_out = 2,
                  .attr = c->attr};
}

/* A forward call that carries on from random other keys, which some rows do not have; o may be
 * wide. */
static inline Call attention_carry_call(Bench *b, const Case *c, bool wide)
{
    Call call = attention_call(c);
    const DType type = wide ? dtype_wide(c->type) : c->type;
    call.out[0] = NEW(b, type, (Strides)((c->strides + 1) % N_STRIDES), c->t, c->h, c->c);
    call.number[0] = 1;
    accumulator(b, call.out[0], 1);
    fill(b, &call.out[1], 20);
    for (int64_t row = 0; row < c->t * c->h; row += 5) {
        put(&call.out[1], row, -HUGE_VAL);
        for (int64_t i = 0; i < c->c; i++) put(&call.out[0], row * c->c + i, 0);
    }
    return call;
}

/* The backward call for a random dout, with the current o and lse; keep scales accumulators. */
static inline Call attention_dx_call(Bench *b, const Case *c, const double keep[3])
{
    Call call = {.n_in = 7, .n_out = 3, .attr = c->attr};
    const Tensor in[] = {c->q, c->k, c->v, c->ranges};
    memcpy(call.in, in, sizeof in);
    call.in[4] = RANDOM(b, c->type, (Strides)((c->strides + 2) % N_STRIDES), c->t, c->h, c->c);
    call.in[5] = c->lse;
    call.in[6] = c->o;
    for (int o = 0; o < 3; o++) {
        call.out[o] = NEW(b, c->type, (Strides)((c->strides + o) % N_STRIDES), o ? c->s : c->t,
                          o ? c->g : c->h, c->c);
        accumulator(b, call.out[o], keep[o]);
        call.number[o] = keep[o];
    }
    return call;
}

/* Dot product of a head's channels of token i of a and of token j of b. */
static inline long double dot(const Tensor *a, int64_t i, int64_t a_head, const Tensor *b,
                              int64_t j, int64_t b_head)
{
    long double sum = 0;
    for (int64_t c = 0; c < a->n[2]; c++)
        sum += (long double)get(a, (i * a->n[1] + a_head) * a->n[2] + c) *
               (long double)get(b, (j * b->n[1] + b_head) * b->n[2] + c);
    return sum;
}

/* The key head of query head h, from its position among all heads; -1 if there is none. */
static inline int64_t source_of(const Case *c, int64_t h)
{
    const int64_t group = c->attr.attention.group;
    if (group == 0) return h * c->g / c->h;
    for (int64_t g = 0; g < c->g; g++)
        if (h + c->attr.attention.head_at < (g + 1) * group) return g;
    return -1;
}

/* The weights p[s] of row (t, h): softmax over all its keys at once. Returns its lse. */
static inline long double weights_of(const Case *c, int64_t t, int64_t h, long double *p)
{
    const int64_t g = source_of(c, h);
    long double max = -HUGE_VALL, sum = 0;
    for (int64_t j = 0; j < c->s; j++) {
        p[j] = -HUGE_VALL;
        if (c->g == 0 || !sees(&c->ranges, t, j + c->attr.attention.key_at)) continue;
        p[j] = (long double)c->attr.attention.scale * dot(&c->q, t, h, &c->k, j, g);
        max = fmaxl(max, p[j]);
    }
    for (int64_t j = 0; j < c->s; j++) {
        p[j] = p[j] == -HUGE_VALL ? 0 : expl(p[j] - max);
        sum += p[j];
    }
    for (int64_t j = 0; j < c->s && sum > 0; j++) p[j] /= sum;
    return sum > 0 ? max + logl(sum) : -HUGE_VALL;
}

#endif
