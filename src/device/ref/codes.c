/* codes.c -- coded weights, element by element: the bits that the other devices must have. */
#include "base/fp8.h"
#include "device/codes.h"
#include "device/ref/ref.h"

#include <math.h>

/* Element i of x, as programs would read it: rounded to the type of codes.from. */
static double weight_at(const Call *call, int64_t i)
{
    char bytes[sizeof(double)];
    double x = tensor_get(&call->in[0], i);
    const RowRef rounded = {bytes, call->attr.codes.from, 1};
    row_store(rounded, 0, 1, &x);
    row_load(rounded, 0, 1, &x);
    return x;
}

/* fmax returns the other number if one is NaN. */
Err ref_weight_amax(const Call *call)
{
    const Tensor *m = &call->out[0];
    for (int64_t i = 0; i < call->in[0].n[0]; i++) {
        const int64_t cell = codes_cell(&call->attr, i);
        tensor_set(m, cell, fmax(tensor_get(m, cell), fabs(weight_at(call, i))));
    }
    return OK;
}

Err ref_weight_scales(const Call *call)
{
    for (int64_t i = 0; i < call->in[0].n[0]; i++) {
        const float amax = (float)tensor_get(&call->in[0], i);
        tensor_set(&call->out[0], i, (double)fp8_scale(call->attr.codes.type, amax).scale);
    }
    return OK;
}

Err ref_weight_codes(const Call *call)
{
    const DType type = call->attr.codes.type;
    for (int64_t i = 0; i < call->in[0].n[0]; i++) {
        const float amax = (float)tensor_get(&call->in[1], codes_cell(&call->attr, i));
        const double x = (double)((float)weight_at(call, i) * fp8_scale(type, amax).inverse);
        tensor_set(&call->out[0], i, x);
    }
    return OK;
}

Err ref_turn(const Call *call)
{
    Call copy = *call;
    copy.in[0] = tensor_transposed(&call->in[0]);
    return ref_copy(&copy);
}
