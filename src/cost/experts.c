/* experts.c -- the work of ops over the rows of experts.
 *
 *     rooms     | a a b . | c d . . |      what tensors have room for: a bound
 *     rows      | a a b     c d     |      what kernels compute
 *
 * Routing is taken to be balanced: rows are the choices of as many tokens as the rank has, less
 * those that a capacity below 1 drops, and each expert has its even share of them. A grouped GEMM
 * is one GEMM for each expert, whose tiles share the units of the device. */
#include "cost/cost_parts.h"

bool cost_is_grouped(OpId op)
{
    return op == OP_grouped_linear || op == OP_grouped_linear_dx || op == OP_grouped_linear_dw ||
           op == OP_grouped_linear_swiglu || op == OP_grouped_linear_dswiglu ||
           op == OP_grouped_linear_dx2 || op == OP_grouped_linear_fp8 ||
           op == OP_grouped_linear_fp8_dx || op == OP_grouped_linear_fp8_dw;
}

static bool makes_dw(OpId op)
{
    return op == OP_grouped_linear_dw || op == OP_grouped_linear_fp8_dw;
}

/* The operand of a second matrix of each expert, which is multiplied too; 0: there is none. */
static int second_matrix(OpId op)
{
    return op == OP_grouped_linear_swiglu ? 2 : op == OP_grouped_linear_dx2 ? 3 : 0;
}

static bool is_over_rows(OpId op)
{
    return cost_is_grouped(op) || op == OP_grouped_swiglu || op == OP_grouped_swiglu_dx ||
           op == OP_collect_rows || op == OP_spread_rows || op == OP_grouped_quantize;
}

/* w [e,o,i] is an input, dw [e,o,i] an output. Two products with one operand are one GEMM of twice
 * the columns; a sum of two products is one of twice the depth. */
static void set_extents(CostWork *w, const Dim *matrices, const Dim *out)
{
    const bool dw = makes_dw(w->op);
    w->experts = (double)matrices[0].cap;
    w->m = dw ? (double)matrices[1].cap : (double)out[0].cap / w->experts;
    w->n = dw ? (double)matrices[2].cap : (double)out[1].cap;
    if (w->op == OP_grouped_linear_swiglu) w->n *= 2;
    w->k = w->m > 0 && w->n > 0 ? w->heavy / (2 * w->experts * w->m * w->n) : 0;
}

void cost_set_grouped(CostWork *w, const Dims *in, const Dims *out)
{
    set_extents(w, makes_dw(w->op) ? out[0].dim : in[1].dim, out[0].dim);
}

/* Rows over those that tensors have: the rooms that they travel in or, without rooms, as many as
 * choices. Above 1 if rooms are too small for balanced rows. */
static double share_of_rooms(const Program *p)
{
    double sent = 1, kept = 1;
    for (int i = 0; i < p->n_instr; i++) {
        const Instr *in = &p->instr[i];
        if (in->op == OP_limit_choices && in->attr.kernel.limit.capacity < 1)
            kept = in->attr.kernel.limit.capacity;
        if (in->op != OP_permute_sent) continue;
        const Dim *at = p->tensor[in->in[1]].dim, *rooms = p->tensor[in->out[0]].dim;
        sent = (double)(at[0].cap * at[1].cap) / (double)rooms[0].cap;
    }
    return kept * sent;
}

double cost_model_flops(const Program *p, const Instr *i)
{
    return cost_is_grouped(i->op) ? i->heavy_flops * share_of_rooms(p) : i->heavy_flops;
}

static double bytes_of(const ProgTensor *t)
{
    double bytes = (double)dtype_bytes(t->dtype);
    for (int d = 0; d < t->ndim; d++) bytes *= (double)t->dim[d].cap;
    return bytes;
}

void cost_set_experts(CostWork *w, const Program *p, const Instr *i)
{
    if (!is_over_rows(w->op)) return;
    const ProgTensor *const out = &p->tensor[i->out[0]];
    const ProgTensor *const matrices = makes_dw(w->op) ? out : &p->tensor[i->in[1]];
    const int second = second_matrix(w->op);
    const double fixed = (cost_is_grouped(w->op) ? bytes_of(matrices) : 0) +
                         (second ? bytes_of(&p->tensor[i->in[second]]) : 0);
    const double rows = share_of_rooms(p), share = rows < 1 ? rows : 1;
    if (cost_is_grouped(w->op)) set_extents(w, matrices->dim, out->dim);
    w->heavy *= share;
    w->light *= share;
    w->bytes = fixed + share * (w->bytes - fixed);
    if (makes_dw(w->op))
        w->k *= share;
    else
        w->m *= share;
}
