/* cuda_workspace.c -- the scratch of each kernel of device cuda; device/cuda/scratch.h has the
 * formulas. A kernel that is not listed takes none. */
#include "device/cuda_workspace.h"

#include "device/by.h"
#include "device/cuda/attention/cudnn_fit.h"
#include "device/cuda/scratch.h"
#include "device/runtime.h"

static int64_t rows_of(const Tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->ndim; i++) rows *= t->n[i];
    return rows;
}

static int64_t width_of(const Tensor *t) { return t->ndim > 0 ? t->n[t->ndim - 1] : 1; }

/* The sums of rows of an output of a GEMM: by the kernel that makes it, or by one of its own. */
static size_t gemm_sums(const Tensor *c)
{
    return max_size(scratch_sum_rows(c->n[0], c->n[1]), scratch_pingpong(c->n[0], c->n[1]));
}

/* dw, db and the gradient of a bias, which may have a kernel of its own. */
static size_t norm_scratch(const Call *call, int sums)
{
    const Tensor *x = &call->in[1];
    const int64_t rows = rows_of(x), width = width_of(x);
    const size_t bytes = scratch_norm(sums, rows, width);
    return sums > 2 ? max_size(bytes, scratch_sum_rows(rows, width)) : bytes;
}

static size_t forward_scratch(const Call *call)
{
    const int64_t *q = call->in[0].n;
    size_t most = 0;
    for (int64_t tile = 0; tile <= MAX_TILE_ROWS; tile += HULL_ROWS) {
        const HullScratch s = hull_scratch(q[0], q[1], tile, false);
        most = max_size(most, hull_scratch_bytes(&s));
    }
    if (cudnn_misfit(call, false, CUDNN_FIT_ANY_LENGTH)) return most;
    return max_size(most, scratch_cudnn(q[0], q[1], call->in[1].n[1], q[2], false));
}

/* Ours for any GPU, ours for sm_90a, cuDNN's. */
static size_t backward_scratch(const Call *call)
{
    const int64_t *q = call->in[0].n, *k = call->in[1].n;
    const HullScratch s = hull_scratch(q[0], q[1], 0, true);
    size_t most = hull_scratch_bytes(&s);
    if (call->in[0].dtype == BF16 && (q[2] == 64 || q[2] == 128))
        most = max_size(most, scratch_backward(q[0], k[0], q[1], q[2] == 64 ? 128 : 64, true));
    if (cudnn_misfit(call, true, CUDNN_FIT_ANY_LENGTH)) return most;
    return max_size(most, scratch_cudnn(q[0], q[1], k[1], q[2], true));
}

/* attention/along.c: all groups of one place as rows, or sequences of a group or a place as
 * heads. */
static size_t along_scratch(const Call *call, bool backward)
{
    const Tensor *q = &call->in[0], *k = &call->in[1];
    Call joined = *call;
    Tensor *to[] = {&joined.in[0], &joined.in[1]};
    const Tensor *from[] = {q, k};
    for (int i = 0; i < 2; i++) {
        to[i]->ndim = 3;
        to[i]->n[0] = from[i]->n[0] * from[i]->n[1];
        to[i]->n[1] = from[i]->n[3];
        to[i]->n[2] = from[i]->n[4];
    }
    joined.attr.attention.causal = 0;
    const int64_t sequences = max_i64(q->n[0], q->n[2]);
    const int64_t heads = min_i64(sequences * q->n[3], max_i64(MAX_ATTENTION_HEADS, q->n[3]));
    const HullScratch s = hull_scratch(q->n[1], heads, 0, backward);
    const size_t apart = hull_scratch_bytes(&s);
    if (q->n[2] != 1) return apart;
    return max_size(apart, backward ? backward_scratch(&joined) : forward_scratch(&joined));
}

static size_t choices_scratch(const Tensor *expert, int64_t experts)
{
    return scratch_choices(expert->n[0] * expert->n[1], experts);
}

static size_t embedding_scratch_of(const Call *call)
{
    const EmbeddingScratch s = embedding_scratch(call->in[0].n[0], call->out[0].n[1]);
    return embedding_scratch_bytes(&s);
}

static size_t cuda_scratch_bytes(KernelId id, const Call *call)
{
    const Tensor *in = call->in, *out = call->out;
    switch (id) {
    case KERNEL_gemm:
    case KERNEL_gemm_add:
    case KERNEL_gemm_gelu:
    case KERNEL_gemm_dswiglu:
    case KERNEL_scaled_gemm:
    case KERNEL_scaled_gemm_add:
        return BLAS_SCRATCH;
    case KERNEL_gemm_dgelu:
        return call->n_out > 1 ? max_size(BLAS_SCRATCH, gemm_sums(&out[0])) : BLAS_SCRATCH;
    case KERNEL_rmsnorm_by:
    case KERNEL_swiglu_by:
    case KERNEL_swiglu_dx_by:
        return by_scratch_bytes(call);
    case KERNEL_sum_rows:
        return scratch_sum_rows(in[0].n[0], in[0].n[1]);
    case KERNEL_layernorm_dw:
        return norm_scratch(call, 2);
    case KERNEL_layernorm_back:
        return norm_scratch(call, call->n_out > 3 ? 3 : 2);
    case KERNEL_rmsnorm_dw:
    case KERNEL_rmsnorm_back:
        return norm_scratch(call, 1);
    case KERNEL_embedding_dw:
        return embedding_scratch_of(call);
    case KERNEL_attention:
        return forward_scratch(call);
    case KERNEL_attention_dx:
        return backward_scratch(call);
    case KERNEL_attention_along:
        return along_scratch(call, false);
    case KERNEL_attention_along_dx:
        return along_scratch(call, true);
    case KERNEL_route:
        return choices_scratch(&out[1], in[0].n[1]);
    case KERNEL_route_dx:
        return max_size(scratch_route_losses(in[1].n[0]), choices_scratch(&in[2], in[1].n[1]));
    case KERNEL_expert_excess:
        return choices_scratch(&in[0], out[0].n[0]);
    case KERNEL_assign_rows:
        return choices_scratch(&in[0], out[1].n[0] - 1);
    case KERNEL_modulate_dw:
    case KERNEL_gate_add_dw:
        return scratch_clips(in[0].n[0], out[0].n[0], out[0].n[1]);
    case KERNEL_token_loss:
    case KERNEL_token_loss_dx:
        return scratch_token_loss(in[0].n[0]);
    case KERNEL_sum_squares:
        return scratch_squares(in[0].n[0]);
    default:
        return 0;
    }
}

const DeviceWorkspace cuda_workspace = {
    .scratch = cuda_scratch_bytes,
    .squares = {sizeof(SquaresPiece), SQUARES_CHUNK},
    .update = {sizeof(UpdatePiece), UPDATE_CHUNK},
};
