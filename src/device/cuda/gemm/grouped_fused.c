/* grouped_fused.c -- GEMMs over the rows of experts that end in a swiglu, or that are added: one
 * launch of the ping-pong kernel on Hopper, else one kernel after the other. A swiglu that is
 * recomputed for backward is rounded by its own kernel, so in deterministic mode it is never fused:
 * the choice of recomputed values must change no bit. */
#include "device/cuda/gemm/hopper_grouped.h"
#include "device/grouped.h"

static bool fits(const Call *call, const ExpertGemm *g)
{
    return hopper_grouped_fits(call->queue->context, g);
}

Err cuda_grouped_gemm_swiglu(const Call *call)
{
    const ExpertGemm g = {.kind = GROUPED_SWIGLU,
                          .x = {call->in[0]},
                          .w = {call->in[1], call->in[2]},
                          .offsets = call->in[3],
                          .out = {call->out[0], call->out[1], call->out[2]}};
    TRY(cuda_begin(call, KERNEL_grouped_gemm_swiglu));
    if (tensor_count(&call->out[0]) == 0) return OK;
    if (call->queue->context->any_order && call->attr.gemm.tb && fits(call, &g))
        return hopper_grouped_run(call->queue, &g);
    return grouped_swiglu_by_parts(call, cuda_grouped_gemm, cuda_grouped_swiglu);
}

Err cuda_grouped_gemm_dswiglu(const Call *call)
{
    const ExpertGemm g = {.kind = GROUPED_DSWIGLU,
                          .x = {call->in[0]},
                          .w = {call->in[1]},
                          .offsets = call->in[2],
                          .aux = {call->in[3], call->in[4]},
                          .out = {call->out[0], call->out[1]}};
    TRY(cuda_begin(call, KERNEL_grouped_gemm_dswiglu));
    if (tensor_count(&call->out[0]) == 0) return OK;
    if (fits(call, &g)) return hopper_grouped_run(call->queue, &g);
    return grouped_dswiglu_by_parts(call, cuda_grouped_gemm, cuda_grouped_swiglu_dx);
}

Err cuda_grouped_gemm_pair(const Call *call)
{
    const ExpertGemm g = {.kind = GROUPED_BACK,
                          .x = {call->in[0], call->in[2]},
                          .w = {call->in[1], call->in[3]},
                          .offsets = call->in[4],
                          .out = {call->out[0]}};
    TRY(cuda_begin(call, KERNEL_grouped_gemm_pair));
    if (tensor_count(&call->out[0]) == 0) return OK;
    if (fits(call, &g)) return hopper_grouped_run(call->queue, &g);
    return grouped_pair_by_parts(call, cuda_grouped_gemm);
}
