/* build_diffusion.c -- the builders of diffusion transformers. */
#include "ir/build.h"

#define IN(...)                                                                                    \
    (const Value[]) { __VA_ARGS__ }

static Value emit(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in, int n_out)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] == NO_VALUE) return NO_VALUE; /* the graph has failed already */
    const Node *n = graph_node(g, op, attr, n_in, in, NULL, n_out);
    return n ? n->out[0] : NO_VALUE;
}

Value modulate(Graph *g, Value x, Value scale, Value shift, Value clip, double eps)
{
    const OpAttr attr = {.kernel.norm = {eps}};
    return emit(g, OP_modulate, &attr, 4, IN(x, scale, shift, clip), 3);
}

Value gate_add(Graph *g, Value x, Value gate, Value clip, Value residual)
{
    return emit(g, OP_gate_add, NULL, 4, IN(x, gate, clip, residual), 1);
}

Value sinusoid(Graph *g, Value time, int64_t width, double rate)
{
    const OpAttr attr = {.kernel.sinusoid = {.rate = rate, .base = 10000}};
    if (time == NO_VALUE || g->err != OK) return NO_VALUE;
    const Dims given = dims2(g->value[time].dims.dim[0], dim_of(width));
    const Node *n = graph_node(g, OP_sinusoid, &attr, 1, IN(time), &given, 1);
    if (!n) return NO_VALUE;
    g->value[n->out[0]].dtype = g->dtype; /* the times are wide */
    return n->out[0];
}

Value square_loss(Graph *g, Value x, Value target, Value weights)
{
    const Value loss = emit(g, OP_square_loss, NULL, 3, IN(x, target, weights), 1);
    if (loss != NO_VALUE) g->value[loss].role = ROLE_LOSS;
    return graph_name(g, loss, "loss");
}
