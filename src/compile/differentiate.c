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
    grad_names(&d);
    return graph_check(g);
}
