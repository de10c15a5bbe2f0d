/* epilogue.c -- GEMMs with a fused pointwise epilogue. The epilogue runs on each block of C while
 * it is in L2. Its results have the bits of the two kernels run one after the other.
 *
 * gemm_add always adds the product to the addend (keep = 1), whether or not C is the addend. So the
 * bits do not depend on where C is stored. */
#include "device/cpu/simd/gemm/gemm.h"

/* The plain GEMM of a call whose inputs begin with A and B; bias: index of the optional bias. */
static Call gemm_of(const Call *call, int bias, Tensor c)
{
    Call gemm = *call;
    gemm.n_in = 2;
    if (call->n_in > bias) gemm.in[gemm.n_in++] = call->in[bias];
    gemm.out[0] = c;
    gemm.n_out = 1;
    gemm.number[0] = 0;
    return gemm;
}

static Tensor block_of(const Tensor *t, CBlock b)
{
    Tensor block = *t;
    block.data = row_at(t, b.row * t->stride[0] + b.column * t->stride[1], 1).at;
    block.n[0] = b.m;
    block.n[1] = b.n;
    return block;
}

Err CPU_NAME(gemm_add)(const Call *call)
{
    Call gemm = gemm_of(call, 3, call->out[0]);
    gemm.number[0] = 1;
    return gemm_with_epilogue(&gemm, &(BlockEpilogue){.addend = &call->in[2]});
}

/* out: h, u */
static void gelu_block(const Call *call, CBlock block, Team *team)
{
    const Call after = {.in = {block_of(&call->out[1], block)},
                        .n_in = 1,
                        .out = {block_of(&call->out[0], block)},
                        .n_out = 1,
                        .team = team};
    MUST(CPU_NAME(gelu)(&after) == OK, "gelu of a block");
}

Err CPU_NAME(gemm_gelu)(const Call *call)
{
    const Call gemm = gemm_of(call, 2, call->out[1]);
    return gemm_with_epilogue(
        &gemm, &(BlockEpilogue){.call = call, .run = gelu_block, .operand = {&call->out[0]}});
}

/* in: a, b, u out: c, db? */
static void dgelu_block(const Call *call, CBlock block, Team *team)
{
    const Tensor c = block_of(&call->out[0], block);
    const Call after = {
        .in = {c, block_of(&call->in[2], block)}, .n_in = 2, .out = {c}, .n_out = 1, .team = team};
    MUST(CPU_NAME(gelu_dx)(&after) == OK, "gelu_dx of a block");
}

/* in: a, b, gate, up out: dgate, dup; the GEMM stores dy to dup, and the epilogue replaces it */
static void dswiglu_block(const Call *call, CBlock block, Team *team)
{
    const Tensor dup = block_of(&call->out[1], block);
    const Call after = {.in = {dup, block_of(&call->in[2], block), block_of(&call->in[3], block)},
                        .n_in = 3,
                        .out = {block_of(&call->out[0], block), dup},
                        .n_out = 2,
                        .team = team};
    MUST(CPU_NAME(swiglu_dx)(&after) == OK, "swiglu_dx of a block");
}

Err CPU_NAME(gemm_dswiglu)(const Call *call)
{
    const Call gemm = gemm_of(call, 4, call->out[1]);
    return gemm_with_epilogue(
        &gemm, &(BlockEpilogue){.call = call,
                                .run = dswiglu_block,
                                .operand = {&call->in[2], &call->in[3], &call->out[0]}});
}

Err CPU_NAME(gemm_dgelu)(const Call *call)
{
    const Call gemm = gemm_of(call, 3, call->out[0]);
    TRY(gemm_with_epilogue(
        &gemm, &(BlockEpilogue){.call = call, .run = dgelu_block, .operand = {&call->in[2]}}));
    if (call->n_out < 2) return OK;
    const Call sum = call_sum_rows(call, &call->out[0], 1);
    return CPU_NAME(sum_rows)(&sum);
}
