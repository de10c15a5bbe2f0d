/* slopes.c -- finite differences of a loss. */
#include "support/slopes.h"

#include <math.h>
#include "base/philox.h"
#include "support/tiny.h"

static double loss_at(Rank *r, const Tensor *w, int64_t i, double x, Err *err)
{
    StepResult result = {0};
    real_set(w, i, x);
    if (*err == OK) *err = rank_step(r, &(StepSettings){.step = 1, .lr = 0}, &result);
    return result.loss_sum;
}

static double slope_at(Rank *r, const Tensor *w, int64_t i, Err *err)
{
    const double h = 1e-3, x = real_get(w, i);
    const double inner = loss_at(r, w, i, x + h, err) - loss_at(r, w, i, x - h, err);
    const double outer = loss_at(r, w, i, x + 2 * h, err) - loss_at(r, w, i, x - 2 * h, err);
    real_set(w, i, x);
    return (8 * inner - outer) / (12 * h);
}

int slopes_measure(Rank *loss, int each, int cap, Slope *out, Err *err)
{
    const Model *m = loss->settings.program->model;
    int n = 0;
    *err = OK;
    for (int p = 0; p < m->n_params; p++) {
        const int64_t count = m->param[p].count;
        const Random random = random_named(11, m->param[p].name);
        const Tensor w = rank_param(loss, p, PART_WEIGHT);
        for (int64_t k = 0; k < count && k < each && n < cap; k++) {
            const int64_t at = (int64_t)random_permute(&random, (uint64_t)count, (uint64_t)k);
            out[n++] = (Slope){p, at, slope_at(loss, &w, at, err)};
        }
    }
    return n;
}

static double largest(const Rank *r, int param)
{
    const Tensor dw = rank_param(r, param, PART_GRAD);
    double most = 0;
    for (int64_t i = 0; i < tensor_count(&dw); i++) most = fmax(most, fabs(real_get(&dw, i)));
    return most;
}

double slopes_compare(const Rank *gradients, const Slope *slope, int n, int *worst)
{
    const int n_params = gradients->settings.program->model->n_params;
    double of_all = 0, off = -1;
    for (int p = 0; p < n_params; p++) of_all = fmax(of_all, largest(gradients, p));
    for (int i = 0; i < n; i++) {
        const Tensor dw = rank_param(gradients, slope[i].param, PART_GRAD);
        const double scale = fmax(largest(gradients, slope[i].param), 1e-4 * of_all);
        const double d = fabs(real_get(&dw, slope[i].at) - slope[i].slope) / scale;
        if (!(d <= off)) { /* NaN counts as the largest difference */
            off = d;
            *worst = i;
        }
        if (isnan(d)) return HUGE_VAL;
    }
    return off;
}
