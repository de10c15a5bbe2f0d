/* context_dense.c -- attention of one rank, as its definition has it. */
#include <math.h>

#include "support/context_run.h"

Err attention_case_new(Arena *arena, AttentionCase *c)
{
    TRY(ARENA_NEW(arena, query_values(c), &c->q));
    TRY(ARENA_NEW(arena, query_values(c), &c->dout));
    TRY(ARENA_NEW(arena, key_values(c), &c->k));
    TRY(ARENA_NEW(arena, key_values(c), &c->v));
    TRY(ARENA_NEW(arena, c->tokens, &c->rank));
    TRY(ARENA_NEW(arena, c->tokens, &c->half));
    return ARENA_NEW(arena, 4 * (int64_t)c->tokens, &c->ranges);
}

Err attention_result_new(Arena *arena, const AttentionCase *c, AttentionResult *r)
{
    TRY(ARENA_NEW(arena, query_values(c), &r->o));
    TRY(ARENA_NEW(arena, (int64_t)c->tokens * c->heads, &r->lse));
    TRY(ARENA_NEW(arena, query_values(c), &r->dq));
    TRY(ARENA_NEW(arena, key_values(c), &r->dk));
    return ARENA_NEW(arena, key_values(c), &r->dv);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* One row of one head: probabilities of all keys in p. Returns false if none is live. */
static bool softmax_row(const AttentionCase *c, int i, int head, double *p, double *lse)
{
    const double scale = 1 / sqrt(c->size);
    const int group = head / (c->heads / c->key_heads);
    double most = -HUGE_VAL, sum = 0;
    for (int j = 0; j < c->tokens; j++) {
        const bool live = attention_sees(c, i, j);
        p[j] = live ? scale * dot(&c->q[(i * c->heads + head) * c->size],
                                  &c->k[(j * c->key_heads + group) * c->size], c->size)
                    : -HUGE_VAL;
        most = fmax(most, p[j]);
    }
    *lse = -HUGE_VAL;
    if (most == -HUGE_VAL) return false;
    for (int j = 0; j < c->tokens; j++) sum += p[j] = exp(p[j] - most);
    for (int j = 0; j < c->tokens; j++) p[j] /= sum;
    *lse = most + log(sum);
    return true;
}

void attention_dense(const AttentionCase *c, AttentionResult *r)
{
    const int d = c->size;
    const double scale = 1 / sqrt(d);
    MUST(c->tokens <= MOST_CASE_TOKENS, "%d tokens", c->tokens);
    double p[MOST_CASE_TOKENS], dp[MOST_CASE_TOKENS];
    for (int i = 0; i < c->tokens; i++)
        for (int head = 0; head < c->heads; head++) {
            const int at = (i * c->heads + head) * d, group = head / (c->heads / c->key_heads);
            double mean = 0;
            if (!softmax_row(c, i, head, p, &r->lse[i * c->heads + head])) continue;
            for (int j = 0; j < c->tokens; j++) {
                const int key = (j * c->key_heads + group) * d;
                dp[j] = dot(&c->dout[at], &c->v[key], d);
                mean += p[j] * dp[j];
                for (int x = 0; x < d; x++) {
                    r->o[at + x] += p[j] * c->v[key + x];
                    r->dv[key + x] += p[j] * c->dout[at + x];
                }
            }
            for (int j = 0; j < c->tokens; j++) {
                const int key = (j * c->key_heads + group) * d;
                const double ds = scale * p[j] * (dp[j] - mean);
                for (int x = 0; x < d; x++) {
                    r->dq[at + x] += ds * c->k[key + x];
                    r->dk[key + x] += ds * c->q[at + x];
                }
            }
        }
}
