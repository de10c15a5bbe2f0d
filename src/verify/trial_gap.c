/* trial_gap.c -- difference of two trials; their errors against a third. */
#include "verify/trial.h"

#include <math.h>
#include <string.h>

/* A gradient that is zero except for rounding (of a key's bias: softmax cancels it) has no
 * meaningful largest entry; the largest entry of a tensor therefore counts as at least SMALL of the
 * model's largest. If a gradient is below NEGLIGIBLE of the model's largest, AdamW divides
 * rounding by rounding; such a weight is compared relative to the model's largest weight. */
#define SMALL 1e-3
#define NEGLIGIBLE 1e-6

#define BF16_ROUNDOFF 0x1p-9

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
        if (one->model->param[p].info.rule == PARAM_BY_MARKS) continue; /* no weights */
        const bool still = largest(one->gradient + one->at[p], n) <= NEGLIGIBLE * steep;
        const double least = (still && a == one->weight ? 1 : SMALL) * all;
        const double gap = tensor_gap(a + one->at[p], b + one->at[p], n, least);
        if (!(gap > most)) continue;
        most = gap;
        *name = one->model->param[p].name;
    }
    return most;
}

static bool same_text(const Trial *one, const Trial *other)
{
    const size_t bytes = (size_t)one->n_text * sizeof *one->text;
    return one->n_text == other->n_text && (!bytes || memcmp(one->text, other->text, bytes) == 0);
}

TrialGap trial_gap(const Trial *one, const Trial *other, int steps)
{
    TrialGap g = {0};
    const size_t all = (size_t)one->count * sizeof(double), each = (size_t)steps * sizeof(double);
    for (int i = 0; i < steps; i++) {
        g.loss = fmax(g.loss, tensor_gap(&one->loss[i], &other->loss[i], 1, 0));
        g.norm = fmax(g.norm, tensor_gap(&one->norm[i], &other->norm[i], 1, 0));
    }
    g.valid = tensor_gap(&one->valid, &other->valid, 1, 0);
    g.same_text = same_text(one, other);
    g.gradient = params_gap(one, one->gradient, other->gradient, &g.gradient_at);
    g.weight = params_gap(one, one->weight, other->weight, &g.weight_at);
    g.same = memcmp(one->weight, other->weight, all) == 0 &&
             memcmp(one->gradient, other->gradient, all) == 0 &&
             memcmp(one->loss, other->loss, each) == 0 &&
             memcmp(one->norm, other->norm, each) == 0 && one->valid == other->valid;
    return g;
}

/* ---- errors against f64 ---- */

static double norm(const double *a, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sqrt(sum);
}

static double distance(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return isnan(sum) ? (double)INFINITY : sqrt(sum);
}

/* The norm that an error of parameter p is divided by; see SMALL and NEGLIGIBLE. */
static double norm_of(const Trial *exact, const double *a, int p)
{
    const int64_t n = exact->at[p + 1] - exact->at[p];
    const double part = sqrt((double)n / (double)exact->count); /* of a model of equal entries */
    const double all = part * norm(a, exact->count), own = norm(a + exact->at[p], n);
    const double steep = part * norm(exact->gradient, exact->count);
    const bool still = norm(exact->gradient + exact->at[p], n) <= NEGLIGIBLE * steep;
    return fmax(own, (still ? 1 : SMALL) * all);
}

/* `other` as a multiple of `one`; infinite if one of them is no number or infinite. */
static double growth(double other, double one)
{
    if (!isfinite(one) || !isfinite(other)) return (double)INFINITY;
    return other == one ? 1 : other / one;
}

/* Elements of two trials, which are compared with those of two in f64. */
typedef struct {
    const double *exact, *one, *given, *other;
} Compared;

/* The error of `other` over that of `one`; *name is the parameter with the largest growth. */
static double params_error(const Trial *exact, const Trial *given, Compared c, const char **name)
{
    double one = 0, other = 0, most = 0;
    *name = "";
    for (int p = 0; p < exact->model->n_params; p++) {
        const int64_t at = exact->at[p], n = exact->at[p + 1] - at;
        if (exact->model->param[p].info.rule == PARAM_BY_MARKS) continue;
        const double e = distance(c.exact + at, c.one + at, n) / norm_of(exact, c.exact, p);
        const double f = distance(c.given + at, c.other + at, n) / norm_of(given, c.given, p);
        one += e * e;
        other += f * f;
        if (!(f * f - e * e > most)) continue;
        most = f * f - e * e;
        *name = exact->model->param[p].name;
    }
    return sqrt(growth(other, one));
}

/* The largest relative error of a loss, also of validation, at least one rounding. */
static double loss_error(const Trial *exact, const Trial *t, int steps)
{
    double most = BF16_ROUNDOFF;
    for (int i = 0; i < steps; i++)
        most = fmax(most, tensor_gap(&exact->loss[i], &t->loss[i], 1, 0));
    return fmax(most, tensor_gap(&exact->valid, &t->valid, 1, 0));
}

TrialGap trial_error(const Trial *exact, const Trial *one, const Trial *given, const Trial *other,
                     int steps)
{
    TrialGap g = {.loss = growth(loss_error(given, other, steps), loss_error(exact, one, steps)),
                  .same_text = same_text(one, other)};
    const Compared gradients = {exact->gradient, one->gradient, given->gradient, other->gradient};
    const Compared weights = {exact->weight, one->weight, given->weight, other->weight};
    g.gradient = params_error(exact, given, gradients, &g.gradient_at);
    g.weight = params_error(exact, given, weights, &g.weight_at);
    return g;
}
