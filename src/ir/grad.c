/* grad.c -- the rules, in the order of ops.def. dX comes before dW: a transfer of dX can then
 * overlap the GEMM of dW. */
#include "ir/grad.h"

#include <stdio.h>

#define IN(...)                                                                                    \
    (const Value[]) { __VA_ARGS__ }

static bool wanted(const Grad *d, Value v)
{
    const ValueInfo *info = &d->g->value[v];
    return info->role != ROLE_INPUT && !dtype_is_integer(info->dtype);
}

static void name_gradient(Grad *d, Value v, Value of)
{
    if (d->g->value[of].name[0] && !d->g->value[v].name[0])
        graph_name(d->g, v, "d.%s", d->g->value[of].name);
}

/* Adds one more term to the gradient of v; integers have none. */
static void grad_add(Grad *d, Value v, Value term)
{
    if (d->g->err != OK || term == NO_VALUE || !wanted(d, v)) return;
    if (d->g->value[v].role == ROLE_PARAM) { /* it would be lost: only sums outlive the program */
        d->g->err =
            err_fail(ERR_CHECK,
                     "graph %s: parameter %s is read by an op that cannot sum its gradient; "
                     "read it by a linear op, a norm or an embedding",
                     d->g->kind, d->g->value[v].name);
        return;
    }
    d->grad[v] = d->grad[v] == NO_VALUE ? term : add(d->g, d->grad[v], term);
}

void grad_names(Grad *d)
{
    for (Value v = 0; v < d->n && d->g->err == OK; v++)
        if (d->grad[v] != NO_VALUE) name_gradient(d, d->grad[v], v);
}

/* Makes output i of the newest node (a term of) the gradient of w. The gradient of a parameter is
 * an accumulator: its first writer of the step starts it from zero, by a slot; the others add to
 * it. */
static void grad_sink(Grad *d, Value w, int i)
{
    Graph *g = d->g;
    if (g->err != OK) return;
    Node *n = &g->node[g->n_nodes - 1];
    const Value dw = n->out[i];
    if (g->value[w].role != ROLE_PARAM) {
        n->keep[i] = SLOT_ZERO;
        grad_add(d, w, dw);
        return;
    }
    if (d->grad[w] != NO_VALUE) { /* read twice in this unit: the second adds to the first */
        n->out[i] = d->grad[w];
        n->keep[i] = SLOT_ONE;
        return;
    }
    g->value[dw].role = ROLE_DPARAM;
    g->value[dw].index = g->value[w].index;
    g->value[dw].span = g->value[w].span;
    n->keep[i] = SLOT_PORT + g->value[w].index;
    d->grad[w] = dw;
    name_gradient(d, dw, w);
}

/* Adds a node that makes gradients of activations: output 0 is the gradient of v. */
static void emit_dx(Grad *d, OpId op, const OpAttr *attr, int n_in, const Value *in, Value v)
{
    if (!wanted(d, v)) return;
    const Node *n = graph_node(d->g, op, attr, n_in, in, NULL, 1);
    if (n) grad_add(d, v, n->out[0]);
}

static void emit_dw(Grad *d, OpId op, const OpAttr *attr, int n_in, const Value *in, Value w)
{
    const Dims dims = d->g->value[w].dims;
    if (graph_node(d->g, op, attr, n_in, in, &dims, 1)) grad_sink(d, w, 0);
}

static void grad_linear(Grad *d, const Node *n, const Value *dy)
{
    const OpAttr plain = {.kernel.gemm = {0}}, ta = {.kernel.gemm = {.ta = true}};
    emit_dx(d, OP_linear_dx, &plain, 2, IN(dy[0], n->in[1]), n->in[0]);
    emit_dw(d, OP_linear_dw, &ta, 2, IN(dy[0], n->in[0]), n->in[1]);
    if (n->n_in == 3) emit_dw(d, OP_bias_dw, NULL, 1, IN(dy[0]), n->in[2]);
}

static void grad_both(Grad *d, const Node *n, const Value *dy)
{
    grad_add(d, n->in[0], dy[0]);
    grad_add(d, n->in[1], dy[0]);
}

static void grad_scale(Grad *d, const Node *n, const Value *dy)
{
    grad_add(d, n->in[0], scale(d->g, dy[0], n->attr.kernel.scale.factor));
}

static void grad_cast(Grad *d, const Node *n, const Value *dy)
{
    grad_add(d, n->in[0], cast(d->g, dy[0], d->g->value[n->in[0]].dtype));
}

static void grad_gelu(Grad *d, const Node *n, const Value *dy)
{
    emit_dx(d, OP_gelu_dx, NULL, 2, IN(dy[0], n->in[0]), n->in[0]);
}

static void grad_swiglu(Grad *d, const Node *n, const Value *dy)
{
    const Node *made =
        graph_node(d->g, OP_swiglu_dx, NULL, 3, IN(dy[0], n->in[0], n->in[1]), NULL, 2);
    if (!made) return;
    const Value dgate = made->out[0], dup = made->out[1];
    grad_add(d, n->in[0], dgate);
    grad_add(d, n->in[1], dup);
}

static void grad_layernorm(Grad *d, const Node *n, const Value *dy)
{
    const Value x = n->in[0], w = n->in[1], b = n->in[2], mean = n->out[1], rstd = n->out[2];
    emit_dx(d, OP_layernorm_dx, &n->attr, 5, IN(dy[0], x, w, mean, rstd), x);
    if (!graph_node(d->g, OP_layernorm_dw, &n->attr, 4, IN(dy[0], x, mean, rstd), NULL, 2)) return;
    grad_sink(d, w, 0);
    grad_sink(d, b, 1);
}

static void grad_norm(Grad *d, const Node *n, const Value *dy, OpId dx, OpId dw)
{
    const Value x = n->in[0], w = n->in[1], rstd = n->out[1];
    emit_dx(d, dx, &n->attr, 4, IN(dy[0], x, w, rstd), x);
    emit_dw(d, dw, &n->attr, 3, IN(dy[0], x, rstd), w);
}

static void grad_rmsnorm(Grad *d, const Node *n, const Value *dy)
{
    grad_norm(d, n, dy, OP_rmsnorm_dx, OP_rmsnorm_dw);
}

static void grad_headnorm(Grad *d, const Node *n, const Value *dy)
{
    grad_norm(d, n, dy, OP_headnorm_dx, OP_headnorm_dw);
}

static void grad_embedding(Grad *d, const Node *n, const Value *dy)
{
    emit_dw(d, OP_embedding_dw, &n->attr, 2, IN(dy[0], n->in[0]), n->in[1]);
}

static void grad_rope(Grad *d, const Node *n, const Value *dy)
{
    OpAttr attr = n->attr;
    attr.kernel.rope.back = !attr.kernel.rope.back;
    emit_dx(d, OP_rope, &attr, 2, IN(dy[0], n->in[1]), n->in[0]);
}

static void grad_attention(Grad *d, const Node *n, const Value *dy)
{
    const Value q = n->in[0], k = n->in[1], v = n->in[2], ranges = n->in[3];
    const Value o = n->out[0], lse = n->out[1];
    const OpAttr attr = n->attr;
    const Node *made =
        graph_node(d->g, OP_attention_dx, &attr, 7, IN(q, k, v, ranges, dy[0], lse, o), NULL, 3);
    if (!made) return;
    const Value dq = made->out[0], dk = made->out[1], dv = made->out[2];
    grad_add(d, q, dq);
    grad_add(d, k, dk);
    grad_add(d, v, dv);
}

static void grad_attention_along(Grad *d, const Node *n, const Value *dy)
{
    const Value q = n->in[0], k = n->in[1], v = n->in[2], o = n->out[0], lse = n->out[1];
    const OpAttr attr = n->attr;
    const Node *made =
        graph_node(d->g, OP_attention_along_dx, &attr, 6, IN(q, k, v, dy[0], lse, o), NULL, 3);
    if (!made) return;
    const Value dq = made->out[0], dk = made->out[1], dv = made->out[2];
    grad_add(d, q, dq);
    grad_add(d, k, dk);
    grad_add(d, v, dv);
}

/* Backward starts from the sum of token losses, with upstream gradient 1, so dlogits needs no dy. z
 * is the output of row_sums, which read the logits. */
static void grad_loss(Grad *d, const Node *n, const Value *dy)
{
    (void)dy;
    const Node *sums = &d->g->node[graph_maker(d->g, n->in[0])];
    const Value logits = sums->in[0];
    emit_dx(d, OP_loss_dx, &sums->attr, 5, IN(logits, sums->in[1], n->in[0], sums->in[2], n->in[1]),
            logits);
}

/* The logits of a router are wide; their gradient goes back in the type of x. */
static void grad_linear_wide(Grad *d, const Node *n, const Value *dy)
{
    const DType narrow = d->g->value[n->in[0]].dtype;
    const Value dx = d->g->value[dy[0]].dtype == narrow ? dy[0] : cast(d->g, dy[0], narrow);
    if (dx != NO_VALUE) grad_linear(d, n, &dx);
}

/* The losses of the router have upstream gradient 1, as the loss of tokens. */
static void grad_route(Grad *d, const Node *n, const Value *dy)
{
    const Value logits = n->in[0];
    const OpAttr attr = n->attr;
    const bool first = graph_find(d->g, ROLE_STAT) == NO_VALUE; /* a unit has one set of stats */
    const Dims given[] = {d->g->value[logits].dims,
                          dims1(dim_of(d->g->value[logits].dims.dim[1].cap + 2))};
    const Node *made = graph_node(d->g, OP_route_dx, &attr, 4,
                                  IN(dy[0], logits, n->out[1], n->out[2]), given, first ? 2 : 1);
    if (!made) return;
    const Value ds = made->out[0];
    if (first) d->g->value[made->out[1]].role = ROLE_STAT;
    grad_add(d, logits, ds);
    /* A selection bias has no gradient; it is updated against the excess of its expert's load. */
    if (n->n_in > 1 && d->g->value[n->in[1]].role == ROLE_PARAM)
        emit_dw(d, OP_route_bias_dw, NULL, 1, IN(n->out[1]), n->in[1]);
}

static void grad_permute(Grad *d, const Node *n, const Value *dy)
{
    const int n_in = n->n_in;
    MUST(n_in == 2, "a permute with gates is the gradient of an unpermute");
    emit_dx(d, OP_unpermute, NULL, 2, IN(n->in[1], dy[0]), n->in[0]);
}

static void grad_unpermute(Grad *d, const Node *n, const Value *dy)
{
    const Value at = n->in[0], y = n->in[1];
    if (n->n_in == 2) {
        emit_dx(d, OP_permute, NULL, 2, IN(dy[0], at), y);
        return;
    }
    emit_dx(d, OP_permute, NULL, 3, IN(dy[0], at, n->in[2]), y);
    emit_dx(d, OP_permute_dgate, NULL, 3, IN(dy[0], at, y), n->in[2]);
}

static void grad_grouped_linear(Grad *d, const Node *n, const Value *dy)
{
    const OpAttr plain = {.kernel.gemm = {0}};
    emit_dx(d, OP_grouped_linear_dx, &plain, 3, IN(dy[0], n->in[1], n->in[2]), n->in[0]);
    emit_dw(d, OP_grouped_linear_dw, &plain, 3, IN(dy[0], n->in[0], n->in[2]), n->in[1]);
}

static void grad_grouped_swiglu(Grad *d, const Node *n, const Value *dy)
{
    const Value gate = n->in[0], up = n->in[1];
    const Node *made =
        graph_node(d->g, OP_grouped_swiglu_dx, NULL, 4, IN(dy[0], gate, up, n->in[2]), NULL, 2);
    if (!made) return;
    const Value dgate = made->out[0], dup = made->out[1];
    grad_add(d, gate, dgate);
    grad_add(d, up, dup);
}

static void grad_sigmoid_gate(Grad *d, const Node *n, const Value *dy)
{
    const Value x = n->in[0], s = n->in[1];
    const Node *made = graph_node(d->g, OP_sigmoid_gate_dx, NULL, 3, IN(dy[0], x, s), NULL, 2);
    if (!made) return;
    const Value dx = made->out[0], ds = made->out[1];
    grad_add(d, x, dx);
    grad_add(d, s, ds);
}

/* The gradient of vectors of clips: summed in the wide type, over all ranks too, then narrowed. */
static void add_wide(Grad *d, Value v, Value wide)
{
    const DType type = d->g->value[v].dtype;
    grad_add(d, v, d->g->value[wide].dtype == type ? wide : cast(d->g, wide, type));
}

static void grad_modulate(Grad *d, const Node *n, const Value *dy)
{
    const Value x = n->in[0], scale = n->in[1], shift = n->in[2], clip = n->in[3];
    const Value mean = n->out[1], rstd = n->out[2];
    const OpAttr attr = n->attr;
    const Dims given[] = {d->g->value[scale].dims, d->g->value[shift].dims};
    emit_dx(d, OP_modulate_dx, &attr, 6, IN(dy[0], x, scale, clip, mean, rstd), x);
    const Node *made =
        graph_node(d->g, OP_modulate_dw, &attr, 5, IN(dy[0], x, clip, mean, rstd), given, 2);
    if (!made) return;
    const Value dscale = made->out[0], dshift = made->out[1];
    add_wide(d, scale, dscale);
    add_wide(d, shift, dshift);
}

static void grad_gate_add(Grad *d, const Node *n, const Value *dy)
{
    const Value x = n->in[0], gate = n->in[1], clip = n->in[2];
    const Value residual = n->n_in > 3 ? n->in[3] : NO_VALUE;
    const Dims given = d->g->value[gate].dims;
    if (residual != NO_VALUE) grad_add(d, residual, dy[0]);
    emit_dx(d, OP_gate_add, NULL, 3, IN(dy[0], gate, clip), x);
    const Node *made = graph_node(d->g, OP_gate_add_dw, NULL, 3, IN(dy[0], x, clip), &given, 1);
    if (made) add_wide(d, gate, made->out[0]);
}

/* Times are inputs. */
static void grad_sinusoid(Grad *d, const Node *n, const Value *dy) { (void)d, (void)n, (void)dy; }

/* Upstream gradient 1, as the loss of tokens. */
static void grad_square_loss(Grad *d, const Node *n, const Value *dy)
{
    (void)dy;
    emit_dx(d, OP_square_loss_dx, NULL, 3, IN(n->in[0], n->in[1], n->in[2]), n->in[0]);
}

static void grad_heads(Grad *d, const Node *n, const Value *dy)
{
    grad_add(d, n->in[0], merge(d->g, dy[0]));
}

static void grad_merge(Grad *d, const Node *n, const Value *dy)
{
    grad_add(d, n->in[0], heads(d->g, dy[0], n->attr.heads.size));
}

/* Views that split and join token dims are each other's gradient. */
static void grad_view(Grad *d, const Node *n, const Value *dy, OpId op)
{
    const OpAttr attr = n->attr;
    emit_dx(d, op, &attr, 1, IN(dy[0]), n->in[0]);
}

static void grad_unfold(Grad *d, const Node *n, const Value *dy) { grad_view(d, n, dy, OP_fold); }

static void grad_fold(Grad *d, const Node *n, const Value *dy) { grad_view(d, n, dy, OP_unfold); }

static void grad_unfold_along(Grad *d, const Node *n, const Value *dy)
{
    grad_view(d, n, dy, OP_fold_along);
}

static void grad_fold_along(Grad *d, const Node *n, const Value *dy)
{
    grad_view(d, n, dy, OP_unfold_along);
}

static void grad_transpose(Grad *d, const Node *n, const Value *dy)
{
    emit_dx(d, OP_transpose, NULL, 1, IN(dy[0]), n->in[0]);
}

typedef void (*Rule)(Grad *d, const Node *n, const Value *dy);

#define grad_none NULL
static const Rule rule[N_OPS] = {
#define OP(id, kernel, signature, rows, flops, class, gradient) [OP_##id] = grad_##gradient,
#include "ir/ops.def"
#undef OP
};
#undef grad_none

Err grad_apply(Grad *d, int index)
{
    const Node n = d->g->node[index]; /* a copy: the table moves as nodes are added */
    Value dy[MAX_OUT];
    bool any = false;
    for (int i = 0; i < n.n_out; i++) {
        dy[i] = d->grad[n.out[i]];
        any = any || dy[i] != NO_VALUE || d->g->value[n.out[i]].role == ROLE_LOSS;
    }
    if (!any) return graph_err(d->g);
    if (!rule[n.op])
        return err_fail(ERR_CHECK, "%s: node %d, %s, has no gradient", d->g->kind, index,
                        op_info(n.op)->name);
    d->g->chunk = n.chunk;
    rule[n.op](d, &n, dy);
    d->g->chunk = 0;
    return graph_err(d->g);
}
