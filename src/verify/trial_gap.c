/* trial_gap.c -- difference of two trials. */
#include "verify/trial.h"

#include <math.h>
#include <string.h>

/* A gradient that is zero except for rounding (of a key's bias: softmax cancels it) has no
 * meaningful largest entry; the largest entry of a tensor therefore counts as at least SMALL of the
 * model's largest. If a gradient is below NEGLIGIBLE of the model's largest, AdamW divides
 * rounding by rounding; such a weight is compared relative to the model's largest weight. */
#define SMALL 1e-3
#define NEGLIGIBLE 1e-6

/* The largest absolute entry of a tensor; infinite if an entry is NaN. */
static double largest(const double *a, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = isnan(a[i]) ? (double)INFINITY : fmax(most, fabs(a[i]));
    return most;
}

/* The greatest difference in a tensor, relative to its largest entry or to `least`, whichever is
 * larger. */
static double tensor_gap(const double *a, const double *b, int64_t n, double least)
{
    double most = least, gap = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) || isnan(b[i])) return (double)INFINITY;
        most = fmax(most, fabs(a[i]));
        gap = fmax(gap, fabs(a[i] - b[i]));
    }
    return gap == 0 ? 0 : gap / most;
}

static double params_gap(const Trial *one, const double *a, const double *b, const char **name)
{
    double most = 0;
    const double all = largest(a, one->count), steep = largest(one->gradient, one->count);
    *name = "";
    for (int p = 0; p < one->model->n_params; p++) {
        const int64_t n = one->at[p + 1] - one->at[p];
        const bool still = largest(one->gradient + one->at[p], n) <= NEGLIGIBLE * steep;
        const double least = (still && a == one->weight ? 1 : SMALL) * all;
        const double gap = tensor_gap(a + one->at[p], b + one->at[p], n, least);
        if (!(gap > most)) continue;
        most = gap;
        *name = one->model->param[p].name;
    }
    return most;
}

TrialGap trial_gap(const Trial *one, const Trial *other, int steps)
{
    TrialGap g = {0};
    const size_t all = (size_t)one->count * sizeof(double), each = (size_t)steps * sizeof(double);
    for (int i = 0; i < steps; i++)
        g.loss = fmax(g.loss, tensor_gap(&one->loss[i], &other->loss[i], 1, 0));
    g.gradient = params_gap(one, one->gradient, other->gradient, &g.gradient_at);
    g.weight = params_gap(one, one->weight, other->weight, &g.weight_at);
    g.same = memcmp(one->weight, other->weight, all) == 0 &&
             memcmp(one->gradient, other->gradient, all) == 0 &&
             memcmp(one->loss, other->loss, each) == 0 && memcmp(one->norm, other->norm, each) == 0;
    return g;
}
