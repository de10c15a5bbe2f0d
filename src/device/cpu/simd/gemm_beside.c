/* gemm_beside.c -- products with the pointwise op beside them: the product, then the op on what it
 * made.
 *
 * gemm_add starts c from onto and lets the product add to it, whether or not c is onto: so the bits
 * do not tell where c lies. */
#include "device/cpu/simd/simd.h"

/* The product alone, of a call whose inputs begin with a and b. */
static Call product_of(const Call *call, int bias, Tensor c)
{
    Call p = *call;
    p.n_in = 2;
    if (call->n_in > bias) p.in[p.n_in++] = call->in[bias];
    p.out[0] = c;
    p.n_out = 1;
    p.number[0] = 0;
    return p;
}

Err CPU_NAME(gemm_add)(const Call *call)
{
    const Tensor *onto = &call->in[2], *c = &call->out[0];
    const Call start = {.in = {*onto}, .n_in = 1, .out = {*c}, .n_out = 1, .team = call->team};
    Call p = product_of(call, 3, *c);
    p.number[0] = 1;
    if (onto->data != c->data) TRY(CPU_NAME(copy)(&start));
    return CPU_NAME(gemm)(&p);
}

Err CPU_NAME(gemm_gelu)(const Call *call)
{
    const Tensor h = call->out[0], u = call->out[1];
    const Call p = product_of(call, 2, u);
    const Call after = {.in = {u}, .n_in = 1, .out = {h}, .n_out = 1, .team = call->team};
    TRY(CPU_NAME(gemm)(&p));
    return CPU_NAME(gelu)(&after);
}

Err CPU_NAME(gemm_dgelu)(const Call *call)
{
    const Tensor u = call->in[2], c = call->out[0];
    const Call p = product_of(call, 3, c);
    const Call after = {.in = {c, u}, .n_in = 2, .out = {c}, .n_out = 1, .team = call->team};
    TRY(CPU_NAME(gemm)(&p));
    return CPU_NAME(gelu_dx)(&after);
}
