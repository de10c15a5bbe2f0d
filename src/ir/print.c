/* print.c -- a graph as text, one line per node. Stable, so that tests of passes compare it.
 *
 *   layer, f64
 *     %0 x [24,32]: stream from the unit before
 *     %1 input_layernorm.weight [32]: parameter 0
 *     F  %3 attn.in [24,32], %4 [24] = rmsnorm %0 %1 {eps 1e-05}
 *     W  %31 d.input_layernorm.weight [32] += rmsnorm_dw %30 %0 %4 {port 0} */
#include "ir/graph.h"

#include "base/text.h"

static const char *role_name(Role r)
{
    static const char *const name[N_ROLES] = {"local",
                                              "input",
                                              "parameter",
                                              "stream from the unit before",
                                              "stream to the unit after",
                                              "gradient from the unit after",
                                              "gradient to the unit before",
                                              "scales of parameter",
                                              "gradient of parameter",
                                              "loss",
                                              "statistics",
                                              "rows of all slices",
                                              "rows of the session",
                                              "argument"};
    return name[r];
}

static void print_dims(Text *t, const Dims *d)
{
    text_add(t, "[");
    for (int i = 0; i < d->ndim; i++) {
        const Dim *e = &d->dim[i];
        text_add(t, "%s%s%lld", i ? "," : "", e->slot == NO_SLOT ? "" : "<=", (long long)e->cap);
        if (e->span)
            text_add(t, "@%d spans", e->n_spans);
        else if (e->from)
            text_add(t, "@%lld", (long long)e->from);
    }
    text_add(t, "]");
}

static void print_value(Text *t, const Graph *g, Value v)
{
    const ValueInfo *info = &g->value[v];
    text_add(t, "%%%d%s%s ", v, info->name[0] ? " " : "", info->name);
    print_dims(t, &info->dims);
    if (info->dtype != g->dtype) text_add(t, " %s", dtype_name(info->dtype));
    if (info->space == SPACE_HOST) text_add(t, " on host");
}

static void print_rope(Text *t, const Attr *a)
{
    static const char *const scaling[] = {"", " linear", " llama3"};
    text_add(t, " {%stheta %g%s", a->rope.back ? "back " : "", a->rope.theta,
             scaling[a->rope.scaling]);
    if (a->rope.scaling != ROPE_PLAIN) text_add(t, " %g", a->rope.factor);
    text_add(t, "}");
}

static void print_move(Text *t, const Graph *g, const Node *n)
{
    const TransferPart *m = &g->move[n->attr.move.index];
    if (n->op == OP_pack)
        text_add(t, " {%lld boxes}", (long long)m->n_copies);
    else if (op_pairs(n->op))
        text_add(t, " {%s rank %d}", n->op == OP_send ? "to" : "from", m->peer);
    else
        text_add(t, " {%s%d ranks}", m->reduce == REDUCE_MAX ? "maximum, " : "", m->group.n);
}

static void print_attr(Text *t, const Graph *g, const Node *n)
{
    const OpAttr *a = &n->attr;
    switch (n->op) {
    case OP_layernorm:
    case OP_rmsnorm:
    case OP_headnorm:
    case OP_modulate:
        text_add(t, " {eps %g}", a->kernel.norm.eps);
        break;
    case OP_quantize_blocks:
        text_add(t, " {%d x %d}", (int)a->kernel.quantize.block[0],
                 (int)a->kernel.quantize.block[1]);
        break;
    case OP_scale:
        text_add(t, " {factor %g}", a->kernel.scale.factor);
        break;
    case OP_sinusoid:
        text_add(t, " {rate %g}", a->kernel.sinusoid.rate);
        break;
    case OP_rope:
        print_rope(t, &a->kernel);
        break;
    case OP_attention:
    case OP_attention_dx:
    case OP_attention_part_dx:
    case OP_attention_part_dx_onto:
    case OP_attention_along:
    case OP_attention_along_dx:
    case OP_attention_along_part_dx:
        text_add(t, " {scale %g", a->kernel.attention.scale);
        if (a->kernel.attention.group > 0)
            text_add(t, " group %lld from %lld", (long long)a->kernel.attention.group,
                     (long long)a->kernel.attention.head_at);
        text_add(t, "}");
        break;
    case OP_embedding:
    case OP_embedding_dw:
    case OP_row_sums:
    case OP_loss_dx:
        if (a->kernel.vocab.base)
            text_add(t, " {vocabulary from %lld}", (long long)a->kernel.vocab.base);
        break;
    case OP_part:
        text_add(t, " {dim %lld from %lld}", (long long)a->part.dim, (long long)a->part.from);
        break;
    case OP_join:
        text_add(t, " {dim %lld}", (long long)a->part.dim);
        break;
    case OP_all_reduce:
    case OP_all_gather:
    case OP_reduce_scatter:
    case OP_all_to_all:
    case OP_send:
    case OP_recv:
    case OP_pack:
        print_move(t, g, n);
        break;
    case OP_call:
        text_add(t, " {slot %d, %lld bytes}", a->call.slot, (long long)a->call.region_bytes);
        break;
    default:
        break;
    }
}

static void print_node(Text *t, const Graph *g, const Node *n)
{
    bool adds = false, port = false;
    text_add(t, "  %s%s ", phase_name(n->phase), n->recomputed ? "'" : " ");
    for (int i = 0; i < n->n_out; i++) {
        text_add(t, i ? ", " : "");
        print_value(t, g, n->out[i]);
        adds = adds || role_accumulates(g->value[n->out[i]].role) || n->keep[i] == SLOT_BEFORE_LAST;
        port = port || n->keep[i] >= SLOT_PORT;
    }
    text_add(t, " %s %s", adds ? "+=" : "=", op_info(n->op)->name);
    for (int i = 0; i < n->n_in; i++) text_add(t, " %%%d", n->in[i]);
    print_attr(t, g, n);
    if (port) text_add(t, " {port %d}", n->keep[0] - SLOT_PORT);
    if (n->queue != QUEUE_COMPUTE) text_add(t, " on %s", queue_name(n->queue));
    if (n->chunk) text_add(t, " chunk %d", n->chunk);
    text_add(t, "\n");
}

Err graph_print(const Graph *g, Arena *arena, const char **out)
{
    Text t = text_in(arena);
    text_add(&t, "%s, %s\n", g->kind, dtype_name(g->dtype));
    for (Value v = 0; v < g->n_values; v++) {
        const ValueInfo *info = &g->value[v];
        if (!role_given(info->role) && info->role != ROLE_ARG) continue;
        text_add(&t, "  ");
        print_value(&t, g, v);
        text_add(&t, ": %s", role_name(info->role));
        if (info->role == ROLE_PARAM || info->role == ROLE_SCALE) text_add(&t, " %d", info->index);
        if (info->span > 1) text_add(&t, " to %d", info->index + info->span - 1);
        text_add(&t, "\n");
    }
    for (int i = 0; i < g->n_nodes; i++) print_node(&t, g, &g->node[i]);
    return text_done(&t, out);
}
