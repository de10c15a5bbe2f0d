/* build.c -- the builders: a node each, and the names of its outputs. */
#include "ir/build.h"

#define IN(...)                                                                                    \
    (const Value[]) { __VA_ARGS__ }

/* Adds a node; returns its first output. */
static Value emit(Graph *g, OpId op, const OpAttr *attr, int n_in, const Value *in, int n_out)
{
    for (int i = 0; i < n_in; i++)
        if (in[i] == NO_VALUE) return NO_VALUE; /* the graph has failed already */
    const Node *n = graph_node(g, op, attr, n_in, in, NULL, n_out);
    return n ? n->out[0] : NO_VALUE;
}

Value input_sized(Graph *g, Input which, Dim rows, int64_t extent)
{
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_INPUT && g->value[v].index == (int)which) return v;
    const InputInfo *info = input_info(which);
    const Dims dims = info->extent == 1 ? dims1(rows) : dims2(rows, dim_of(extent));
    const Value v = graph_value(g, ROLE_INPUT, info->name, input_dtype(which, g->dtype), dims);
    if (v != NO_VALUE) g->value[v].index = (int32_t)which;
    return v;
}

Value input(Graph *g, Input which, Dim rows)
{
    return input_sized(g, which, rows, input_info(which)->extent);
}

Value stream_in(Graph *g, Dim rows, int64_t width)
{
    return graph_value(g, ROLE_X, "x", g->dtype, dims2(rows, dim_of(width)));
}

Value stream_out(Graph *g, Value y)
{
    y = own(g, y);
    if (y != NO_VALUE) g->value[y].role = ROLE_Y;
    return graph_name(g, y, "y");
}

Value linear(Graph *g, Value x, Value w, Value bias)
{
    const OpAttr attr = {.kernel.gemm = {.tb = true}};
    return emit(g, OP_linear, &attr, bias == NO_VALUE ? 2 : 3, IN(x, w, bias), 1);
}

Value add(Graph *g, Value a, Value b) { return emit(g, OP_add, NULL, 2, IN(a, b), 1); }

Value scale(Graph *g, Value x, double factor)
{
    const OpAttr attr = {.kernel.scale = {factor}};
    return emit(g, OP_scale, &attr, 1, IN(x), 1);
}

Value cast(Graph *g, Value x, DType to)
{
    const Value y = emit(g, OP_cast, NULL, 1, IN(x), 1);
    if (y != NO_VALUE) g->value[y].dtype = to;
    return y;
}

Value own(Graph *g, Value v)
{
    if (g->err != OK || v == NO_VALUE) return NO_VALUE;
    const int maker = graph_maker(g, v);
    const bool mine = maker != NO_NODE && g->value[v].role == ROLE_LOCAL &&
                      op_info(g->node[maker].op)->class != CLASS_VIEW;
    return mine ? v : scale(g, v, 1.0);
}

Value gelu(Graph *g, Value x) { return emit(g, OP_gelu, NULL, 1, IN(x), 1); }

Value swiglu(Graph *g, Value gate, Value up)
{
    return emit(g, OP_swiglu, NULL, 2, IN(gate, up), 1);
}

Value layernorm(Graph *g, Value x, Value w, Value b, double eps)
{
    const OpAttr attr = {.kernel.norm = {eps}};
    return emit(g, OP_layernorm, &attr, 3, IN(x, w, b), 3);
}

Value rmsnorm(Graph *g, Value x, Value w, double eps)
{
    const OpAttr attr = {.kernel.norm = {eps}};
    if (g->err != OK) return NO_VALUE;
    return emit(g, g->value[x].dims.ndim == 3 ? OP_headnorm : OP_rmsnorm, &attr, 2, IN(x, w), 2);
}

Value embedding(Graph *g, Value ids, Value w)
{
    return emit(g, OP_embedding, NULL, 2, IN(ids, w), 1);
}

Value rope(Graph *g, Value x, Value positions, const Attr *rotation)
{
    const OpAttr attr = {.kernel = *rotation};
    return emit(g, OP_rope, &attr, 2, IN(x, positions), 1);
}

Value attention(Graph *g, Value q, Value k, Value v, Value ranges, double factor, int64_t span)
{
    const OpAttr attr = {.kernel.attention = {.scale = factor, .span = span}};
    return emit(g, OP_attention, &attr, 4, IN(q, k, v, ranges), 2);
}

static Value unfold_along(Graph *g, Value x, int64_t length, int64_t inner)
{
    const OpAttr attr = {.heads = {length, inner}};
    return emit(g, OP_unfold_along, &attr, 1, IN(x), 1);
}

Value attention_along(Graph *g, Value q, Value k, Value v, int64_t length, int64_t inner,
                      double factor)
{
    const OpAttr attr = {.kernel.attention = {.scale = factor}}, dims = {.heads = {length, inner}};
    int n = 0; /* of this kind before: strategies pin the operands, which therefore have names */
    for (int i = 0; i < g->n_nodes; i++) n += g->node[i].op == OP_attention_along;
    const Value qs = graph_name(g, unfold_along(g, q, length, inner), "along%d.q", n);
    const Value ks = graph_name(g, unfold_along(g, k, length, inner), "along%d.k", n);
    const Value vs = graph_name(g, unfold_along(g, v, length, inner), "along%d.v", n);
    const Value o =
        graph_name(g, emit(g, OP_attention_along, &attr, 3, IN(qs, ks, vs), 2), "along%d.o", n);
    return emit(g, OP_fold_along, &dims, 1, IN(o), 1);
}

Value second_output(const Graph *g, Value first)
{
    const int maker = first == NO_VALUE ? NO_NODE : graph_maker(g, first);
    return maker == NO_NODE || g->node[maker].n_out < 2 ? NO_VALUE : g->node[maker].out[1];
}

Value heads(Graph *g, Value x, int64_t size)
{
    const OpAttr attr = {.heads = {.size = size}};
    return emit(g, OP_heads, &attr, 1, IN(x), 1);
}

Value merge(Graph *g, Value x)
{
    if (g->err != OK) return NO_VALUE;
    const OpAttr attr = {.heads = {.size = g->value[x].dims.dim[2].cap}};
    return emit(g, OP_merge, &attr, 1, IN(x), 1);
}

Value unfold_rows(Graph *g, Value x, int64_t size)
{
    const OpAttr attr = {.heads = {size, 0}};
    return emit(g, OP_unfold, &attr, 1, IN(x), 1);
}

Value fold_rows(Graph *g, Value x)
{
    if (g->err != OK) return NO_VALUE;
    const OpAttr attr = {.heads = {g->value[x].dims.dim[1].cap, 0}};
    return emit(g, OP_fold, &attr, 1, IN(x), 1);
}

Value transpose_rows(Graph *g, Value x) { return emit(g, OP_transpose, NULL, 1, IN(x), 1); }

Value token_loss(Graph *g, Value x, Value w, Value targets, Value weights)
{
    g->chunk++;
    const Value logits = graph_name(g, linear(g, x, w, NO_VALUE), "logits");
    const Value m = graph_name(g, emit(g, OP_row_max, NULL, 1, IN(logits), 1), "logits.max");
    const Value z =
        graph_name(g, emit(g, OP_row_sums, NULL, 3, IN(logits, m, targets), 1), "logits.sums");
    const Value loss = emit(g, OP_loss, NULL, 2, IN(z, weights), 1);
    if (loss != NO_VALUE) g->value[loss].role = ROLE_LOSS;
    g->chunk = 0;
    return graph_name(g, loss, "loss");
}

Value part(Graph *g, Value x, int dim, int64_t from, Dim extent)
{
    if (g->err != OK) return NO_VALUE;
    const OpAttr attr = {.part = {dim, from}};
    Dims dims = g->value[x].dims;
    dims.dim[dim] = extent;
    const Node *n = graph_node(g, OP_part, &attr, 1, IN(x), &dims, 1);
    return n ? n->out[0] : NO_VALUE;
}

Value join(Graph *g, int n_parts, const Value *parts, int dim, Dims dims)
{
    if (g->err != OK) return NO_VALUE;
    const OpAttr attr = {.part = {dim, 0}};
    const Node *n = graph_node(g, OP_join, &attr, n_parts, parts, &dims, 1);
    return n ? n->out[0] : NO_VALUE;
}

static Value begin_copy(Graph *g, Value x, OpId op, Queue queue, Space to)
{
    const Value y = emit(g, op, NULL, 1, IN(x), 1);
    if (y == NO_VALUE) return y;
    g->node[g->n_nodes - 1].queue = queue;
    g->value[y].space = to;
    return y;
}

Value copy_out(Graph *g, Value x) { return begin_copy(g, x, OP_copy_out, QUEUE_D2H, SPACE_HOST); }

Value copy_in(Graph *g, Value x) { return begin_copy(g, x, OP_copy_in, QUEUE_H2D, SPACE_DEVICE); }

Value wait_for(Graph *g, Value begun)
{
    const Value y = emit(g, OP_wait, NULL, 1, IN(begun), 1);
    if (y != NO_VALUE) g->value[y].space = g->value[begun].space;
    return y;
}

Value call(Graph *g, int n_in, const Value *in, Dims out, int slot, int64_t region_bytes)
{
    const OpAttr attr = {.call = {.region_bytes = region_bytes, .slot = (int32_t)slot}};
    const int64_t words = (region_bytes + 7) / 8;
    const Dims given[] = {out, dims1(dim_of(words))};
    for (int i = 0; i < n_in; i++)
        if (in[i] == NO_VALUE) return NO_VALUE;
    const Node *n = graph_node(g, OP_call, &attr, n_in, in, given, 2);
    if (!n) return NO_VALUE;
    g->value[n->out[1]].dtype = I64; /* the region: bytes that no other node reads */
    return n->out[0];
}
