/* optimizer.c -- the kernels that UPDATE runs over a part of a unit's pack: sums of squares, AdamW,
 * SGD, and steps against the sign. */
#include "device/ref/pointwise.h"

#include <math.h>

/* One tile: the definition of a gradient's norm includes the order of this sum. */
Err ref_sum_squares(const Call *call)
{
    const Tensor *x = &call->in[0];
    const int64_t length = row_length(x), rows = row_count(x);
    double sum = 0, v[REF_CHUNK];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t from = 0; from < length; from += REF_CHUNK) {
            const int64_t n = min_i64(length - from, REF_CHUNK);
            row_load(tensor_row(x, row), from, n, v);
            for (int64_t i = 0; i < n; i++) sum += v[i] * v[i];
        }
    row_keep(tensor_row(&call->out[0], 0), 0, 1, call->number[0], &sum);
    return OK;
}

/* y: w, m, v.   The decay uses the weight before the update, and bypasses the moments. */
static void adamw_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    const double beta1 = call->attr.adamw.beta1, beta2 = call->attr.adamw.beta2;
    const double eps = call->attr.adamw.eps, decay = call->attr.adamw.decay;
    const double lr = call->number[0], factor = call->number[1];
    const double bias1 = call->number[2], bias2 = call->number[3];
    double *w = y[0], *m = y[1], *v = y[2];
    for (int64_t i = 0; i < n; i++) {
        const double g = factor * x[0][i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        w[i] -= lr * (m[i] / bias1 / (sqrt(v[i] / bias2) + eps) + decay * w[i]);
    }
}

Err ref_adamw(const Call *call)
{
    pointwise(call, adamw_formula, UPDATE);
    return OK;
}

static void sgd_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    const double lr = call->number[0], factor = call->number[1];
    for (int64_t i = 0; i < n; i++)
        y[0][i] -= lr * (factor * x[0][i] + call->attr.sgd.decay * y[0][i]);
}

Err ref_sgd(const Call *call)
{
    pointwise(call, sgd_formula, UPDATE);
    return OK;
}

static void sign_formula(const Call *call, int64_t n, double x[][REF_CHUNK], double y[][REF_CHUNK])
{
    for (int64_t i = 0; i < n; i++)
        y[0][i] -= call->number[0] * (double)((x[0][i] > 0) - (x[0][i] < 0));
}

Err ref_sign_sgd(const Call *call)
{
    pointwise(call, sign_formula, UPDATE);
    return OK;
}
