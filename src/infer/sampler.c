/* sampler.c -- the filters; each walks over the candidates that are left. */
#include "infer/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"

Err sampler_open(Sampler *s, const SamplerSettings *settings, int64_t vocab, Arena *a)
{
    const SamplerSettings *x = settings;
    if (!(x->temperature >= 0) || isinf(x->temperature))
        return err_fail(
            ERR_CONFIG,
            "temperature %g: must be a finite number, at least 0; 0 takes the most likely token",
            x->temperature);
    if (x->top_k < 0)
        return err_fail(ERR_CONFIG, "top-k %lld: must be at least 0; 0 keeps all tokens",
                        (long long)x->top_k);
    if (!(x->top_p > 0 && x->top_p <= 1))
        return err_fail(ERR_CONFIG, "top-p %g: must be above 0 and at most 1; 1 keeps all tokens",
                        x->top_p);
    if (!(x->repetition > 0) || isinf(x->repetition))
        return err_fail(ERR_CONFIG,
                        "repetition penalty %g: must be a finite number above 0; 1 is no penalty",
                        x->repetition);
    *s = (Sampler){.settings = *settings, .vocab = vocab};
    TRY(ARENA_NEW(a, vocab, &s->at));
    return ARENA_NEW(a, vocab, &s->seen);
}

static double logit_at(const Tensor *row, int64_t i)
{
    const int64_t at = i * row->stride[row->ndim - 1];
    float f;
    if (row->dtype == F64) return ((const double *)row->data)[at];
    if (row->dtype == F32) return (double)((const float *)row->data)[at];
    const uint32_t wide = (uint32_t)((const uint16_t *)row->data)[at] << 16;
    memcpy(&f, &wide, sizeof f);
    return (double)f;
}

static Err take_logits(Sampler *s, const Tensor *row)
{
    s->n = s->vocab;
    s->reordered = false;
    for (int64_t i = 0; i < s->vocab; i++) {
        s->at[i] = (Candidate){(int32_t)i, logit_at(row, i)};
        if (isnan(s->at[i].logit))
            return err_fail(ERR_CHECK,
                            "the logit of token %lld is NaN: the weights or the computation are "
                            "broken",
                            (long long)i);
    }
    return OK;
}

/* Penalizes a token once, however often it occurred. */
static void penalize(Sampler *s, const RandomDraw *d)
{
    const double r = s->settings.repetition;
    if (r == 1) return;
    for (int64_t i = 0; i < d->n; i++) s->seen[d->before[i]] = true;
    for (int64_t i = 0; i < d->n; i++) {
        double *x = &s->at[d->before[i]].logit;
        if (s->seen[d->before[i]]) *x = *x < 0 ? *x * r : *x / r;
        s->seen[d->before[i]] = false;
    }
}

/* Descending logits; the lower token first for equal ones. */
static int by_logit(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int by_token(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int32_t largest(const Sampler *s)
{
    int64_t best = 0;
    for (int64_t i = 1; i < s->n; i++)
        if (s->at[i].logit > s->at[best].logit) best = i;
    return s->at[best].token;
}

/* The k-th largest logit by quickselect: O(vocabulary). Reorders the candidates. */
static double kth_largest(Candidate *at, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const Candidate pivot = at[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (by_logit(&at[i], &pivot) < 0) i++;
            while (by_logit(&at[j], &pivot) > 0) j--;
            if (i > j) break;
            const Candidate t = at[i];
            at[i++] = at[j];
            at[j--] = t;
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return at[k - 1].logit;
}

/* Keeps candidates equal to the k-th too. */
static void keep_top_k(Sampler *s)
{
    const int64_t k = s->settings.top_k;
    int64_t n = 0;
    if (k == 0 || k >= s->n) return;
    const double least = kth_largest(s->at, s->n, k);
    s->reordered = true;
    for (int64_t i = 0; i < s->n; i++)
        if (s->at[i].logit >= least) s->at[n++] = s->at[i];
    s->n = n;
}

/* Replaces logits by weights exp(logit - largest); returns their sum. */
static double weigh(Sampler *s)
{
    double most = s->at[0].logit, sum = 0;
    for (int64_t i = 1; i < s->n; i++)
        if (s->at[i].logit > most) most = s->at[i].logit;
    for (int64_t i = 0; i < s->n; i++) {
        s->at[i].logit = exp(s->at[i].logit - most);
        sum += s->at[i].logit;
    }
    return sum;
}

/* Works on weights. Candidates below (1 - p) / n of the sum add up to less than 1 - p of it, so the
 * more likely ones already have p: they are dropped before sorting. */
static double keep_top_p(Sampler *s, double sum)
{
    const double p = s->settings.top_p, least = (1 - p) * sum / (double)s->n;
    double before = 0;
    int64_t n = 0;
    if (p >= 1) return sum;
    for (int64_t i = 0; i < s->n; i++)
        if (s->at[i].logit >= least) s->at[n++] = s->at[i];
    qsort(s->at, (size_t)n, sizeof *s->at, by_logit);
    s->reordered = true;
    s->n = n;
    for (n = 0; n < s->n && (n == 0 || before < p * sum); n++) before += s->at[n].logit;
    s->n = n;
    return before;
}

/* The candidate that contains `left` in the cumulative weights, in the order of tokens. */
static int32_t take_share(Sampler *s, double left)
{
    int64_t i = 0;
    if (s->reordered) qsort(s->at, (size_t)s->n, sizeof *s->at, by_token);
    while (i < s->n - 1 && left >= s->at[i].logit) left -= s->at[i++].logit;
    return s->at[i].token;
}

Err sampler_draw(Sampler *s, const Tensor *row, const RandomDraw *draw, int32_t *token)
{
    const SamplerSettings *set = &s->settings;
    MUST(row->n[row->ndim - 1] == s->vocab, "%lld logits", (long long)row->n[row->ndim - 1]);
    TRY(take_logits(s, row));
    penalize(s, draw);
    if (set->temperature == 0) {
        *token = largest(s);
        return OK;
    }
    for (int64_t i = 0; i < s->n; i++) s->at[i].logit /= set->temperature;
    keep_top_k(s);
    const double sum = keep_top_p(s, weigh(s));
    const Random random = random_named(set->seed, "generate");
    const uint64_t index = (uint64_t)draw->request << 32 | (uint64_t)draw->n;
    *token = take_share(s, random_uniform(&random, index) * sum);
    return OK;
}
