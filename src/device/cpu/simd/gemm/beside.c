/* beside.c -- products with the pointwise op beside them: the op runs on tiles of what the product
 * makes, while they are in the second cache. An element's bits are those of one after the other.
 *
 * gemm_add starts from onto and lets the product add to it, whether or not c is onto: so the bits
 * do not tell where c lies. */
#include "device/cpu/simd/gemm/panels.h"

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

static Tensor part_of(const Tensor *t, Box box)
{
    Tensor part = *t;
    part.data = row_at(t, box.row * t->stride[0] + box.column * t->stride[1], 1).at;
    part.n[0] = box.m;
    part.n[1] = box.n;
    return part;
}

Err CPU_NAME(gemm_add)(const Call *call)
{
    Call p = product_of(call, 3, call->out[0]);
    p.number[0] = 1;
    return gemm_with(&p, &(Beside){.addend = &call->in[2]});
}

/* out: h, u */
static void gelu_of_tile(const Call *call, Box tile, Team *team)
{
    const Call after = {.in = {part_of(&call->out[1], tile)},
                        .n_in = 1,
                        .out = {part_of(&call->out[0], tile)},
                        .n_out = 1,
                        .team = team};
    MUST(CPU_NAME(gelu)(&after) == OK, "gelu of a tile");
}

Err CPU_NAME(gemm_gelu)(const Call *call)
{
    const Call p = product_of(call, 2, call->out[1]);
    return gemm_with(&p, &(Beside){.call = call, .then = gelu_of_tile, .near = {&call->out[0]}});
}

/* in: a, b, u   out: c, db? */
static void dgelu_of_tile(const Call *call, Box tile, Team *team)
{
    const Tensor c = part_of(&call->out[0], tile);
    const Call after = {
        .in = {c, part_of(&call->in[2], tile)}, .n_in = 2, .out = {c}, .n_out = 1, .team = team};
    MUST(CPU_NAME(gelu_dx)(&after) == OK, "gelu_dx of a tile");
}

/* in: a, b, gate, up   out: dgate, dup, where dy lies until it is used up */
static void dswiglu_of_tile(const Call *call, Box tile, Team *team)
{
    const Tensor dup = part_of(&call->out[1], tile);
    const Call after = {.in = {dup, part_of(&call->in[2], tile), part_of(&call->in[3], tile)},
                        .n_in = 3,
                        .out = {part_of(&call->out[0], tile), dup},
                        .n_out = 2,
                        .team = team};
    MUST(CPU_NAME(swiglu_dx)(&after) == OK, "swiglu_dx of a tile");
}

Err CPU_NAME(gemm_dswiglu)(const Call *call)
{
    const Call p = product_of(call, 4, call->out[1]);
    return gemm_with(&p, &(Beside){.call = call,
                                   .then = dswiglu_of_tile,
                                   .near = {&call->in[2], &call->in[3], &call->out[0]}});
}

Err CPU_NAME(gemm_dgelu)(const Call *call)
{
    const Call p = product_of(call, 3, call->out[0]);
    TRY(gemm_with(&p, &(Beside){.call = call, .then = dgelu_of_tile, .near = {&call->in[2]}}));
    if (call->n_out < 2) return OK;
    const Call sum = call_sum_rows(call, &call->out[0], 1);
    return CPU_NAME(sum_rows)(&sum);
}
