/* delayed.c -- delayed scaling: marks of amaxes, the scales that follow, and values of 8 bits by
 * these (base/fp8.h). */
#include "base/fp8.h"
#include "device/by.h"
#include "device/ref/ref.h"

#include <math.h>
#include <stdlib.h>

Err ref_delayed_scales(const Call *call)
{
    const Tensor *mark = &call->in[0], *s = &call->out[0];
    for (int64_t site = 0; site < s->n[0]; site++) {
        float bin[FP8_BINS];
        for (int b = 0; b < FP8_BINS; b++) bin[b] = (float)tensor_get(mark, site * FP8_BINS + b);
        const DType type = call->attr.sites.gradients >> site & 1 ? E5M2 : E4M3;
        tensor_set(s, site, (double)fp8_delayed_scale(type, bin));
    }
    return OK;
}

Err ref_mark_amax(const Call *call)
{
    const Tensor *out = &call->out[0];
    const double keep = call->number[0];
    for (int64_t i = 0; i < out->n[0]; i++)
        tensor_set(out, i, keep != 0 ? keep * tensor_get(out, i) : 0);
    for (int k = 0; k < call->n_in; k++) {
        const int bin = fp8_bin((float)tensor_get(&call->in[k], 0));
        const int64_t at = (int64_t)(call->attr.sites.first + k) * FP8_BINS + bin;
        if (bin >= 0) tensor_set(out, at, tensor_get(out, at) + 1);
    }
    return OK;
}

Err ref_age_marks(const Call *call)
{
    const Tensor *dw = &call->in[0], *w = &call->out[0];
    for (int64_t i = 0; i < tensor_count(dw); i++)
        tensor_set(w, i, (double)fp8_mark((float)tensor_get(w, i), (float)tensor_get(dw, i)));
    return OK;
}

/* The call of ref_quantize with an amax that gives the scale. */
static Err quantize_with(const Call *call, Tensor y)
{
    const double s = tensor_get(&call->in[1], 0);
    const DType type = call->attr.by.type;
    double amax = s * (double)fp8_format(type).max, scale;
    Call q = *call;
    q.n_out = 2;
    q.out[0] = y;
    q.attr.quantize.type = type;
    q.in[1] = (Tensor){.data = &amax, .dtype = F64, .ndim = 1, .n = {1}, .stride = {1}};
    q.out[1] = (Tensor){.data = &scale, .dtype = F64, .ndim = 1, .n = {1}, .stride = {1}};
    return ref_quantize(&q);
}

Err ref_quantize_by_turned(const Call *call)
{
    return quantize_with(call, tensor_transposed(&call->out[0]));
}

Err ref_quantize_by(const Call *call)
{
    Call amax = *call;
    amax.n_in = amax.n_out = 1;
    amax.out[0] = call->out[1];
    TRY(ref_amax(&amax));
    TRY(quantize_with(call, call->out[0]));
    return call->n_out > 2 ? quantize_with(call, tensor_transposed(&call->out[2])) : OK;
}

static Err in_parts(const Call *call, ByForm form, Kernel make)
{
    void *scratch = malloc(by_scratch_bytes(call));
    if (!scratch) return err_fail(ERR_NOMEM, "ref: no memory for values before quantization");
    const Err err = by_parts(call, form, scratch, make, ref_quantize_by);
    free(scratch);
    return err;
}

Err ref_rmsnorm_by(const Call *call) { return in_parts(call, by_rmsnorm, ref_rmsnorm); }
Err ref_swiglu_by(const Call *call) { return in_parts(call, by_swiglu, ref_swiglu); }
Err ref_swiglu_dx_by(const Call *call) { return in_parts(call, by_swiglu_dx, ref_swiglu_dx); }
