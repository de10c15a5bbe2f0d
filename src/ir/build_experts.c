/* build_experts.c -- the builders of a mixture of experts. */
#include "ir/build.h"

#define IN(...)                                                                                    \
    (const Value[]) { __VA_ARGS__ }

/* Adds a node. `given`: shapes that the inputs do not determine, or NULL. Returns it, or NULL if
 * the graph has failed. */
static const Node *emit(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in,
                        const Dims *given, int n_out)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] == NO_VALUE) return NULL;
    return graph_node(g, op, attr, n_in, in, given, n_out);
}

static Value first(const Node *n) { return n ? n->out[0] : NO_VALUE; }

Value linear_wide(Graph *g, Value x, Value w)
{
    const OpAttr attr = {.kernel.gemm = {.tb = true}};
    return first(emit(g, OP_linear_wide, &attr, 2, IN(x, w), NULL, 1));
}

Routing route(Graph *g, Value logits, Value bias, int64_t k, const Attr *attr)
{
    const Routing none = {NO_VALUE, NO_VALUE, NO_VALUE};
    const OpAttr a = {.kernel = *attr};
    if (g->err != OK) return none;
    const Dims *s = &g->value[logits].dims;
    if (k < 1 || k > s->dim[1].cap) {
        g->err = err_fail(ERR_CHECK, "graph %s: %lld experts of a token, of %lld", g->kind,
                          (long long)k, (long long)s->dim[1].cap);
        return none;
    }
    const Dims chosen = dims2(s->dim[0], dim_of(k)), given[] = {chosen, chosen, dims1(s->dim[1])};
    const Node *n = emit(g, OP_route, &a, bias == NO_VALUE ? 1 : 2, IN(logits, bias), given, 3);
    return n ? (Routing){n->out[0], n->out[1], n->out[2]} : none;
}

Value limit_choices(Graph *g, const Routing *r, const Attr *attr)
{
    const OpAttr a = {.kernel = *attr};
    if (g->err != OK) return NO_VALUE;
    return first(emit(g, OP_limit_choices, &a, 2, IN(r->expert, r->gate), NULL, 1));
}

RowAssignment assign_rows(Graph *g, Value expert, int64_t experts)
{
    if (g->err != OK) return (RowAssignment){NO_VALUE, NO_VALUE};
    const Dims given[] = {g->value[expert].dims, dims1(dim_of(experts + 1))};
    const Node *n = emit(g, OP_assign_rows, NULL, 1, IN(expert), given, 2);
    return n ? (RowAssignment){n->out[0], n->out[1]} : (RowAssignment){NO_VALUE, NO_VALUE};
}

Value permute(Graph *g, Value x, Value at, Value gate)
{
    return first(emit(g, OP_permute, NULL, gate == NO_VALUE ? 2 : 3, IN(x, at, gate), NULL, 1));
}

Value unpermute(Graph *g, Value at, Value y, Value gate)
{
    return first(emit(g, OP_unpermute, NULL, gate == NO_VALUE ? 2 : 3, IN(at, y, gate), NULL, 1));
}

Value grouped_linear(Graph *g, Value x, Value w, Value offsets)
{
    const OpAttr attr = {.kernel.gemm = {.tb = true}};
    return first(emit(g, OP_grouped_linear, &attr, 3, IN(x, w, offsets), NULL, 1));
}

Value grouped_swiglu(Graph *g, Value gate, Value up, Value offsets)
{
    return first(emit(g, OP_grouped_swiglu, NULL, 3, IN(gate, up, offsets), NULL, 1));
}

Value sigmoid_gate(Graph *g, Value x, Value s)
{
    return first(emit(g, OP_sigmoid_gate, NULL, 2, IN(x, s), NULL, 1));
}
