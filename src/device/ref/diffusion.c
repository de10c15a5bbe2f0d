/* diffusion.c -- the features of a time, and the squared error of rows. Few and cheap: the other
 * devices on the host use them too where noted. */
#include "device/ref/ref.h"

#include <math.h>

static void sinusoid_tile(void *work, int64_t b)
{
    const Call *call = work;
    const Tensor *y = &call->out[0];
    const int64_t half = y->n[1] / 2;
    const double at = call->attr.sinusoid.rate * tensor_get(&call->in[0], b);
    for (int64_t i = 0; i < half; i++) {
        const double angle = at * pow(call->attr.sinusoid.base, -(double)i / (double)half);
        tensor_set(y, b * y->n[1] + i, cos(angle));
        tensor_set(y, b * y->n[1] + half + i, sin(angle));
    }
}

Err ref_sinusoid(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], sinusoid_tile);
    return OK;
}

/* The mean over a row of (x - target)^2. */
static double square_error(const Tensor *x, const Tensor *target, int64_t t)
{
    double sum = 0, a[REF_CHUNK], b[REF_CHUNK];
    for (int64_t from = 0; from < x->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(x->n[1] - from, REF_CHUNK);
        row_load(tensor_row(x, t), from, n, a);
        row_load(tensor_row(target, t), from, n, b);
        for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sum / (double)x->n[1];
}

enum { BATCH = 256 }; /* rows whose errors are buffered, to be summed in order */

typedef struct {
    const Call *call;
    int64_t first;
    double error[BATCH];
} SquareBatch;

static void square_tile(void *work, int64_t i)
{
    SquareBatch *s = work;
    const Tensor *in = s->call->in;
    const double weight = tensor_get(&in[2], s->first + i);
    s->error[i] = weight == 0 ? 0 : weight * square_error(&in[0], &in[1], s->first + i);
}

Err ref_square_loss(const Call *call)
{
    const int64_t rows = call->in[0].n[0];
    SquareBatch s = {.call = call};
    double sum = 0;
    for (; s.first < rows; s.first += BATCH) {
        const int64_t n = min_i64(rows - s.first, BATCH);
        team_run(call->team, n, square_tile, &s);
        for (int64_t i = 0; i < n; i++) sum += s.error[i];
    }
    row_keep(tensor_row(&call->out[0], 0), 0, 1, call->number[0], &sum);
    return OK;
}

static void square_dx_tile(void *work, int64_t t)
{
    const Call *call = work;
    const Tensor *x = &call->in[0], *dx = &call->out[0];
    const double weight = tensor_get(&call->in[2], t), factor = 2 * weight / (double)dx->n[1];
    double a[REF_CHUNK] = {0}, b[REF_CHUNK] = {0};
    for (int64_t from = 0; from < dx->n[1]; from += REF_CHUNK) {
        const int64_t n = min_i64(dx->n[1] - from, REF_CHUNK);
        if (weight != 0) {
            row_load(tensor_row(x, t), from, n, a);
            row_load(tensor_row(&call->in[1], t), from, n, b);
            for (int64_t i = 0; i < n; i++) a[i] = factor * (a[i] - b[i]);
        }
        row_store(tensor_row(dx, t), from, n, a);
    }
}

Err ref_square_loss_dx(const Call *call)
{
    ref_tiles(call, call->out[0].n[0], square_dx_tile);
    return OK;
}
