/* shadow_work.c -- the work of the shadow device's operations, at private addresses, by `ref`. */
#include <math.h>
#include <string.h>

#include "comm/fold.h"
#include "support/shadow_memory.h"
#include "support/shadow_parts.h"

static Tensor real(Tensor t)
{
    t.data = shadow_real(t.data);
    return t;
}

Err run_kernel(KernelId id, const Call *call)
{
    Call c = *call;
    c.queue = NULL;
    c.team = NULL;
    for (int i = 0; i < c.n_in; i++) c.in[i] = real(c.in[i]);
    for (int i = 0; i < c.n_out; i++) c.out[i] = real(c.out[i]);
    return device_ref.kernel[id](&c);
}

static Tensor flat(const void *data, DType dtype, int64_t n)
{
    return (Tensor){(void *)(uintptr_t)data, dtype, 1, {n}, {1}};
}

Err run_squares(const DeviceList *l)
{
    for (int i = 0; i < l->n; i++) {
        const SquaresPiece *p = &l->squares[i];
        Call c = {.n_in = 1, .n_out = 1, .number = {p->keep}};
        c.in[0] = flat(p->x, p->dtype, p->n);
        c.out[0] = flat(p->sum, F64, 1);
        TRY(run_kernel(KERNEL_sum_squares, &c));
    }
    return OK;
}

Err run_update(const DeviceList *l, const UpdateNumbers *u)
{
    const double factor = *(const double *)shadow_real((void *)(uintptr_t)u->factor);
    const UpdateRates *of = shadow_real((void *)(uintptr_t)u->rates);
    for (int i = 0; i < l->n && !isnan(factor); i++) {
        const UpdatePiece *p = &l->update[i];
        Call c = {
            .n_in = 1, .n_out = p->m ? 3 : 1, .number = {of->lr, factor, of->bias1, of->bias2}};
        c.in[0] = flat(p->grad, p->grad_type, p->n);
        c.out[0] = flat(p->master, F32, p->n);
        if (p->marks) {
            TRY(run_kernel(KERNEL_age_marks, &c));
            continue;
        }
        if (p->sign_rate > 0) {
            c.number[0] = p->sign_rate;
            TRY(run_kernel(KERNEL_sign_sgd, &c));
            continue;
        }
        if (p->m) {
            c.out[1] = flat(p->m, F32, p->n);
            c.out[2] = flat(p->v, F32, p->n);
            c.attr.adamw.beta1 = u->beta1;
            c.attr.adamw.beta2 = u->beta2;
            c.attr.adamw.eps = u->eps;
            c.attr.adamw.decay = p->decay;
        } else {
            c.attr.sgd.decay = p->decay;
        }
        TRY(run_kernel(p->m ? KERNEL_adamw : KERNEL_sgd, &c));
        if (!p->weight) continue;
        Call cast = {.n_in = 1, .n_out = 1};
        cast.in[0] = c.out[0];
        cast.out[0] = flat(p->weight, BF16, p->n);
        TRY(run_kernel(KERNEL_cast, &cast));
    }
    return OK;
}

void run_clip(const DeviceClip *c)
{
    const double *sums = shadow_real((void *)(uintptr_t)c->sums);
    const float *loss = shadow_real((void *)(uintptr_t)c->loss);
    double total = 0, *out = shadow_real(c->out);
    bool bad = false;
    for (int64_t i = 0; i < c->n; i++) total += sums[i];
    for (int64_t i = 0; i < c->n_losses; i++)
        bad = bad || !isfinite((double)loss[i * c->loss_stride]);
    const double mean = *(const double *)shadow_real((void *)(uintptr_t)c->mean);
    const double norm = sqrt(total) * mean;
    const bool skips = bad || !isfinite(norm) || (c->skip > 0 && norm > c->skip);
    const bool clips = c->max_norm > 0 && norm > c->max_norm;
    out[0] = skips ? (double)NAN : clips ? mean * (c->max_norm / norm) : mean;
    out[1] = norm;
}

void run_fold(const DeviceFold *f)
{
    const char *x[MAX_DEVICE_FOLD];
    _Alignas(64) char block[MAX_FOLD_ELEMENTS * sizeof(double)];
    const size_t each = dtype_bytes(f->dtype);
    for (int i = 0; i < f->n; i++) x[i] = shadow_real((void *)(uintptr_t)f->x[i]);
    const Fold of = {f->dtype, f->max ? REDUCE_MAX : REDUCE_SUM, f->n, x};
    for (int64_t at = 0; at < f->count; at += MAX_FOLD_ELEMENTS) {
        const int64_t n = f->count - at < MAX_FOLD_ELEMENTS ? f->count - at : MAX_FOLD_ELEMENTS;
        fold(&of, at, n, block);
        for (int i = 0; i < f->n_out; i++)
            memcpy((char *)shadow_real(f->out[i]) + (size_t)at * each, block, (size_t)n * each);
    }
}
