/* route.h -- the formulas of a router: one token, E experts, K choices.
 *
 *     ROUTE_SOFTMAX          p = softmax(s) over all experts; the K largest are chosen
 *     ROUTE_SOFTMAX_CHOSEN   the K largest logits are chosen; p = softmax over these alone
 *     ROUTE_SIGMOID          p = sigmoid(s)
 *
 *     chosen by              p + bias, by falling value; of equal ones the lower expert first.
 *                            Without bias and groups by s, which has the same order
 *     groups                 G groups of E / G experts; a group's value is the sum of its
 *                            B largest, B = max(1, K / chosen groups) unless it is given; other
 *                            groups have no choice
 *     gate                   scaling p / (sum of the chosen p), or scaling p
 *
 *     balance loss           E / (K T) sum over e of load[e] sum over t of q[t,e]; T tokens, q = p
 *                            of softmax, or p / sum of p of sigmoid; no gradient by load
 *     z loss                 sum over t of (log sum over e of exp(s[t,e]))^2
 *
 * All in f64, so that devices of the host make the same choices. */
#ifndef DEVICE_ROUTE_H
#define DEVICE_ROUTE_H

#include <math.h>
#include "device/device.h"

enum { MAX_EXPERTS = 1024 }; /* of one router */

/* softmax of n values; returns the log of the sum of exponentials. */
static inline double route_softmax(const double *s, int64_t n, double *p)
{
    double most = -(double)INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++) most = s[e] > most ? s[e] : most;
    for (int64_t e = 0; e < n; e++) sum += p[e] = exp(s[e] - most);
    for (int64_t e = 0; e < n; e++) p[e] /= sum;
    return most + log(sum);
}

static inline void route_sigmoid(const double *s, int64_t n, double *p)
{
    for (int64_t e = 0; e < n; e++) p[e] = 1 / (1 + exp(-s[e]));
}

/* Adds candidate e to the chosen ones, of which `have` are there; returns their new number. */
static inline int64_t route_insert(const double *value, int64_t e, int64_t k, int64_t have,
                                   int32_t *chosen)
{
    int64_t at = have;
    while (at > 0 && value[e] > value[chosen[at - 1]]) at--;
    if (at == k) return have;
    if (have < k) have++;
    for (int64_t i = have - 1; i > at; i--) chosen[i] = chosen[i - 1];
    chosen[at] = (int32_t)e;
    return have;
}

/* Marks the groups that experts may be chosen from. */
static inline void route_groups(const Attr *a, const double *value, int64_t n, int64_t k,
                                bool *open)
{
    const int32_t groups = a->route.groups, keep = a->route.chosen_groups;
    const int64_t each = n / groups, rule = k / keep > 1 ? k / keep : 1;
    const int64_t best = a->route.group_best ? a->route.group_best : rule;
    double sum[MAX_EXPERTS];
    int32_t chosen[MAX_EXPERTS], top[MAX_EXPERTS];
    int64_t have = 0;
    for (int32_t g = 0; g < groups; g++) {
        int64_t n_top = 0;
        for (int64_t e = g * each; e < (g + 1) * each; e++)
            n_top = route_insert(value, e, best, n_top, top);
        sum[g] = 0;
        for (int64_t i = 0; i < n_top; i++) sum[g] += value[top[i]];
        open[g] = false;
    }
    for (int32_t g = 0; g < groups; g++) have = route_insert(sum, g, keep, have, chosen);
    for (int64_t i = 0; i < have; i++) open[chosen[i]] = true;
}

/* The values by which experts are chosen, in p or, if they are the logits, s itself. bias may be
 * NULL. */
static inline const double *route_values(const Attr *a, const double *s, const double *bias,
                                         int64_t n, double *p)
{
    if (!bias && a->route.groups <= 1) return s;
    if (a->route.score == ROUTE_SIGMOID)
        route_sigmoid(s, n, p);
    else
        route_softmax(s, n, p);
    for (int64_t e = 0; e < n && bias; e++) p[e] += bias[e];
    return p;
}

/* The k choices by these values. */
static inline void route_pick(const Attr *a, const double *value, int64_t n, int64_t k,
                              int32_t *chosen)
{
    const bool grouped = a->route.groups > 1;
    bool open[MAX_EXPERTS];
    int64_t have = 0;
    if (grouped) route_groups(a, value, n, k, open);
    for (int64_t e = 0; e < n; e++)
        if (!grouped || open[e / (n / a->route.groups)])
            have = route_insert(value, e, k, have, chosen);
}

/* The k choices of a token. p: scratch for n values; bias may be NULL. */
static inline void route_choose(const Attr *a, const double *s, const double *bias, int64_t n,
                                int64_t k, double *p, int32_t *chosen)
{
    route_pick(a, route_values(a, s, bias, n, p), n, k, chosen);
}

/* Scores of the chosen experts, p_i; with ROUTE_SOFTMAX all experts count in the softmax. all:
 * scratch for n values. */
static inline void route_scores(const Attr *a, const double *s, int64_t n, const int32_t *chosen,
                                int64_t k, double *all, double *p)
{
    double picked[MAX_EXPERTS];
    for (int64_t i = 0; i < k; i++) picked[i] = s[chosen[i]];
    if (a->route.score == ROUTE_SOFTMAX_CHOSEN) {
        route_softmax(picked, k, p);
    } else if (a->route.score == ROUTE_SIGMOID) {
        route_sigmoid(picked, k, p);
    } else {
        route_softmax(s, n, all);
        for (int64_t i = 0; i < k; i++) p[i] = all[chosen[i]];
    }
}

/* The factor on p_i: scaling, or scaling / sum; *sum is 1 if gates are not renormalized. */
static inline double route_factor(const Attr *a, const double *p, int64_t k, double *sum)
{
    *sum = 1;
    if (!a->route.renormalize) return a->route.scaling;
    *sum = 1e-20;
    for (int64_t i = 0; i < k; i++) *sum += p[i];
    return a->route.scaling / *sum;
}

/* Adds the gradient of the gates to ds[n]. */
static inline void route_add_dgate(const Attr *a, const double *s, int64_t n, const int32_t *chosen,
                                   int64_t k, const double *dgate, double *ds)
{
    double all[MAX_EXPERTS], p[MAX_EXPERTS], dp[MAX_EXPERTS], sum, dot = 0;
    route_scores(a, s, n, chosen, k, all, p);
    const double factor = route_factor(a, p, k, &sum);
    for (int64_t i = 0; i < k && a->route.renormalize; i++) dot += dgate[i] * p[i] / sum;
    for (int64_t i = 0; i < k; i++) dp[i] = factor * (dgate[i] - dot);
    if (a->route.score == ROUTE_SIGMOID) {
        for (int64_t i = 0; i < k; i++) ds[chosen[i]] += dp[i] * p[i] * (1 - p[i]);
        return;
    }
    double mean = 0;
    for (int64_t i = 0; i < k; i++) mean += dp[i] * p[i];
    if (a->route.score == ROUTE_SOFTMAX)
        for (int64_t e = 0; e < n; e++) ds[e] -= all[e] * mean;
    for (int64_t i = 0; i < k; i++)
        ds[chosen[i]] += p[i] * (a->route.score == ROUTE_SOFTMAX ? dp[i] : dp[i] - mean);
}

/* The two losses of one token, without their coefficients. */
typedef struct {
    double balance, z;
} RouteLosses;

/* Adds the gradients of the losses to ds[n]. weight[e] = E load[e] / (K T). */
static inline RouteLosses route_add_losses(const Attr *a, const double *s, int64_t n,
                                           const double *weight, double *ds)
{
    double q[MAX_EXPERTS], p[MAX_EXPERTS], sum = 0, mean = 0;
    const double lse = route_softmax(s, n, q);
    for (int64_t e = 0; e < n && a->route.z != 0; e++) ds[e] += a->route.z * 2 * lse * q[e];
    if (a->route.score == ROUTE_SIGMOID) {
        route_sigmoid(s, n, p);
        for (int64_t e = 0; e < n; e++) sum += p[e];
        for (int64_t e = 0; e < n; e++) q[e] = p[e] / sum;
    }
    for (int64_t e = 0; e < n; e++) mean += weight[e] * q[e];
    for (int64_t e = 0; e < n && a->route.aux != 0; e++) {
        const double slope = a->route.score == ROUTE_SIGMOID ? q[e] * (1 - p[e]) : q[e];
        ds[e] += a->route.aux * slope * (weight[e] - mean);
    }
    return (RouteLosses){mean, lse * lse};
}

#endif
