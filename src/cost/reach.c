/* reach.c -- kernels that reach a part of the memory's rate, and attention by keys. */
#include <math.h>

#include "cost/cost_parts.h"

static bool is_norm(KernelId k)
{
    switch (k) {
    case KERNEL_layernorm:
    case KERNEL_layernorm_dx:
    case KERNEL_layernorm_dw:
    case KERNEL_layernorm_back:
    case KERNEL_rmsnorm:
    case KERNEL_rmsnorm_dx:
    case KERNEL_rmsnorm_dw:
    case KERNEL_rmsnorm_back:
    case KERNEL_sum_rows:
        return true;
    default:
        return false;
    }
}

static bool is_loss(KernelId k)
{
    return k == KERNEL_row_max || k == KERNEL_row_sums || k == KERNEL_loss_dx ||
           k == KERNEL_token_loss || k == KERNEL_token_loss_dx;
}

double cost_reach(const CostRates *r, const CostWork *w)
{
    const KernelId k = op_info(w->op)->kernel;
    const double reach = w->among > 0 ? r->reach[REACH_STATE]
                         : is_norm(k) ? r->reach[REACH_NORM]
                         : is_loss(k) ? r->reach[REACH_LOSS]
                                      : 0;
    return reach > 0 ? reach : 1;
}

/* The index of the nearest width, by ratio. */
static int nearest(const CostAttention *a, double width)
{
    int best = 0;
    for (int i = 1; i < a->n; i++)
        if (fabs(log(a->width[i] / width)) < fabs(log(a->width[best] / width))) best = i;
    return best;
}

/* Forward has 4 c flops for each pair of a query and a key, backward 10 c. */
double cost_attention_at(const CostAttention *a, const CostWork *w, bool backward)
{
    const int i = nearest(a, w->c);
    const double keys = w->heavy / ((backward ? 10 : 4) * w->c * w->queries);
    return cost_curve_at(backward ? &a->backward[i] : &a->forward[i], keys);
}
