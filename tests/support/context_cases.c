/* context_cases.c -- see context_cases.h. */
#include "support/context_cases.h"

#include <math.h>

static void fill(double *x, int64_t n, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) x[i] = (double)case_random(state) / (1u << 30) - 1;
}

/* Two ranges that do not overlap, in any order; one row in six sees nothing. */
static void random_range(int32_t r[4], int tokens, uint64_t *state)
{
    int32_t at[4];
    for (int i = 0; i < 4; i++) at[i] = case_below(state, tokens + 1);
    for (int i = 1; i < 4; i++)
        for (int j = i; j > 0 && at[j] < at[j - 1]; j--) {
            const int32_t x = at[j];
            at[j] = at[j - 1];
            at[j - 1] = x;
        }
    const int swap = case_below(state, 2) ? 2 : 0;
    const bool none = case_below(state, 6) == 0;
    for (int i = 0; i < 4; i++) r[i] = none ? 0 : at[i ^ swap];
}

static void set_mask(const CaseSizes *s, AttentionCase *c, uint64_t *state)
{
    for (int t = 0, document = 0; t < s->tokens; t++) {
        int32_t *r = &c->ranges[4 * t];
        if (case_below(state, 7) == 0) document = t;
        r[1] = s->mask == MASK_FULL ? s->tokens : t + 1;
        if (s->mask == MASK_PACKED) r[0] = document;
        if (s->mask == MASK_WINDOW) r[0] = t > 8 ? t - 8 : 0;
        if (s->mask == MASK_RANDOM) random_range(r, s->tokens, state);
    }
}

Err attention_case_random(const CaseSizes *s, Arena *arena, AttentionCase *out)
{
    AttentionCase c = {
        .tokens = s->tokens, .heads = s->heads, .key_heads = s->key_heads, .size = s->size};
    uint64_t state = s->seed;
    TRY(attention_case_new(arena, &c));
    fill(c.q, query_values(&c), &state);
    fill(c.dout, query_values(&c), &state);
    fill(c.k, key_values(&c), &state);
    fill(c.v, key_values(&c), &state);
    set_mask(s, &c, &state);
    *out = c;
    return OK;
}

/* The chunk of a token, of 2 * ranks that have random sizes, some of them none. */
static void place_chunk(AttentionCase *c, const ContextShape *s, int token, int chunk)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int half = 0; half < 2; half++)
            if (context_position(s, rank, half) == chunk) {
                c->rank[token] = (int16_t)rank;
                c->half[token] = (uint8_t)half;
            }
}

void attention_case_place(AttentionCase *c, const ContextShape *s, uint64_t seed)
{
    const int chunks = 2 * s->ranks, rows = (c->tokens + s->ranks - 1) / s->ranks;
    uint64_t state = seed;
    for (int i = 0; i < c->tokens; i++) {
        if (s->tokens == TOKENS_STRIPED) {
            c->rank[i] = (int16_t)(i % s->ranks);
            c->half[i] = i / s->ranks >= rows / 2;
            continue;
        }
        const int even = (int)((int64_t)i * chunks / c->tokens);
        place_chunk(c, s, i, even);
    }
    /* Tokens at the end of a chunk go to the next one, up to all of a chunk. */
    for (int i = c->tokens - 2; i >= 0 && s->tokens != TOKENS_STRIPED; i--)
        if (case_below(&state, 3) == 0) {
            c->rank[i] = c->rank[i + 1];
            c->half[i] = c->half[i + 1];
        }
}

void attention_case_scatter(AttentionCase *c, int ranks, uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < c->tokens; i++) {
        c->rank[i] = (int16_t)case_below(&state, ranks);
        c->half[i] = (uint8_t)case_below(&state, 2);
    }
}

static double difference(const double *a, const double *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (a[i] == b[i]) continue; /* both may be -inf */
        const double d = fabs(a[i] - b[i]);
        if (!(d <= most)) most = isnan(d) ? HUGE_VAL : d;
    }
    return most;
}

double attention_difference(const AttentionCase *c, const AttentionResult *a,
                            const AttentionResult *b, const char **where)
{
    static const char *const name[] = {"o", "lse", "dq", "dk", "dv"};
    const double *const x[] = {a->o, a->lse, a->dq, a->dk, a->dv};
    const double *const y[] = {b->o, b->lse, b->dq, b->dk, b->dv};
    const int64_t n[] = {query_values(c), (int64_t)c->tokens * c->heads, query_values(c),
                         key_values(c), key_values(c)};
    double most = -1;
    for (int i = 0; i < 5; i++) {
        const double d = difference(x[i], y[i], n[i]);
        if (d > most) most = d, *where = name[i];
    }
    return most;
}
