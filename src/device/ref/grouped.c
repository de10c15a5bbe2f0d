/* grouped.c -- GEMMs and swiglu on the rows of experts. Each expert is a GEMM of its own, so an
 * element has the bits of kernel gemm. */
#include "device/grouped.h"

#include "device/ref/ref.h"

Err ref_grouped_gemm(const Call *call)
{
    const Tensor *offsets = &call->in[2];
    for (int64_t e = 0; e + 1 < offsets->n[0]; e++) {
        const Call one =
            grouped_call(call, e, grouped_offset(offsets, e), grouped_offset(offsets, e + 1));
        TRY(ref_gemm(&one));
    }
    return OK;
}

Err ref_grouped_gemm_dw(const Call *call)
{
    for (int64_t e = 0; e < call->out[0].n[0]; e++) {
        const Call one = grouped_call_dw(call, e);
        TRY(ref_gemm(&one));
    }
    return OK;
}

Err ref_grouped_swiglu(const Call *call)
{
    const Call live = grouped_live(call);
    return ref_swiglu(&live);
}

Err ref_grouped_swiglu_dx(const Call *call)
{
    const Call live = grouped_live(call);
    return ref_swiglu_dx(&live);
}

Err ref_grouped_quantize(const Call *call)
{
    return grouped_quantize_each(call, ref_amax, ref_quantize);
}

Err ref_stack_quantize(const Call *call) { return ref_grouped_quantize(call); }

Err ref_grouped_scaled_gemm(const Call *call)
{
    return grouped_scaled_each(call, ref_scaled_gemm, false);
}

Err ref_grouped_scaled_gemm_dw(const Call *call)
{
    return grouped_scaled_each(call, ref_scaled_gemm, true);
}

Err ref_grouped_gemm_swiglu(const Call *call)
{
    return grouped_swiglu_by_parts(call, ref_grouped_gemm, ref_grouped_swiglu);
}

Err ref_grouped_gemm_dswiglu(const Call *call)
{
    return grouped_dswiglu_by_parts(call, ref_grouped_gemm, ref_grouped_swiglu_dx);
}

Err ref_grouped_gemm_pair(const Call *call)
{
    return grouped_pair_by_parts(call, ref_grouped_gemm);
}
