/* differentiate.c -- the backward part of a unit, in global shapes, as on one device.
 *
 *   before:  %2 y = linear %0 %1
 *   after:   %2 y = linear %0 %1
 *            %4 d.x = linear_dx %3 %1          %3 is dy
 *            %5 d.w += linear_dw %3 %0
 *
 * Walks the nodes backwards; ir/grad.c has the rule of each op. A unit with a loss needs no dy: the
 * upstream gradient is 1. */
#include "compile/compile.h"

#include "ir/grad.h"

static Err finish_stream(Grad *d)
{
    Graph *g = d->g;
    const Value x = graph_find(g, ROLE_X);
    if (x == NO_VALUE) return graph_err(g);
    if (d->grad[x] == NO_VALUE)
        return err_fail(ERR_CHECK, "graph %s: x does not reach the output, so it has no gradient",
                        g->kind);
    const Value dx = own(g, d->grad[x]); /* it may be dy itself */
    if (dx == NO_VALUE) return graph_err(g);
    g->value[dx].role = ROLE_DX;
    d->grad[x] = dx;
    return graph_err(g);
}

/* Marks of amaxes (base/fp8.h) are sums as gradients are: of nothing, until the pass quantize adds
 * the amaxes. They are counted in W. */
static Err add_marks(Graph *g)
{
    for (Value v = 0; v < g->n_values; v++) {
        const int p = g->value[v].index;
        if (g->value[v].role != ROLE_PARAM || g->param[p].rule != PARAM_BY_MARKS) continue;
        const Dims dims = g->value[v].dims;
        Node *n = graph_node(g, OP_mark_amax, NULL, 0, NULL, &dims, 1);
        if (!n) return graph_err(g);
        n->keep[0] = SLOT_PORT + p;
        ValueInfo *sum = &g->value[n->out[0]];
        sum->role = ROLE_DPARAM;
        sum->index = p;
        sum->span = 1;
        (void)graph_name(g, n->out[0], "d.%s", g->param[p].name);
    }
    return graph_err(g);
}

Err differentiate(Graph *g)
{
    Grad d = {.g = g};
    TRY(ARENA_NEW(g->arena, g->n_values + 1, &d.grad));
    d.n = g->n_values;
    for (int i = 0; i < d.n; i++) d.grad[i] = NO_VALUE;

    const int n_forward = g->n_nodes;
    const Value y = graph_find(g, ROLE_Y);
    if (y != NO_VALUE) {
        const ValueInfo info = g->value[y];
        d.grad[y] = graph_value(g, ROLE_DY, "d.y", info.dtype, info.dims);
    }
    for (int i = n_forward - 1; i >= 0; i--) TRY(grad_apply(&d, i));
    TRY(finish_stream(&d));
    TRY(add_marks(g));
    grad_names(&d);
    return graph_check(g);
}
