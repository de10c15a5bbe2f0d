/* lower_pairs.c -- nodes that read the same operands, as one instruction, if a phase has them all.
 *
 *     I     d.x = layernorm_dx d.h x w mean rstd r           W, which may come much later,
 *     W     d.w, d.b += layernorm_dw d.h x mean rstd         fills pipeline bubbles
 *     B     d.x, d.w, d.b = layernorm_back d.h x w mean rstd r      d.h and x are read once
 *
 * The gradient of a bias joins too: it sums the rows of a value that another op reads or makes.
 *
 *     y = r + a w + c       d.c sums d.y, to which a norm's gradient adds: layernorm_back_bias
 *     u = x v + b           d.b sums d.u, which linear_dgelu makes: linear_dgelu_bias
 *
 * A value of 8 bits and its transposed copy are made together: quantize_both. Further rounds of the
 * rows of experts run once for both gradients: rounds_back.
 *
 * Gradients of parameters stay in W if a schedule runs it apart. Sums over ranks begin after W,
 * and the results of I would have to be kept per micro-batch. A device gives the same bits both
 * ways. */
#include "compile/lower.h"

typedef bool (*PairTest)(const Node *n, const Node *also);

/* dw reads the operands of dx, except w, which is third there. */
static bool reads_same(const Node *dx, const Node *dw)
{
    for (int j = 0; j < dw->n_in; j++)
        if (dw->in[j] != dx->in[j < 2 ? j : j + 1]) return false;
    return true;
}

static bool sums_residual(const Node *dx, const Node *bias)
{
    return dx->n_in == 6 && bias->in[0] == dx->in[5];
}

static bool sums_output(const Node *n, const Node *bias) { return bias->in[0] == n->out[0]; }

static bool quantizes_same(const Node *n, const Node *turned)
{
    return n->in[0] == turned->in[0] && n->in[1] == turned->in[1] &&
           n->attr.kernel.quantize.type == turned->attr.kernel.quantize.type;
}

/* Each has its own outputs, of the same exchange. */
static bool loops_same(const Node *dx, const Node *dw)
{
    for (int j = 0; j < dw->n_in; j++)
        if (dw->in[j] != dx->in[j]) return false;
    return true;
}

/* Tried in this order: `also` joins the op that the node has become by then. equal: both have the
 * same operands, so they run where the first of them stood; else `also` makes gradients of
 * parameters, which nobody reads. */
static const struct {
    OpId op, also, both;
    PairTest fits;
    bool equal;
} pair[] = {
    {OP_layernorm_dx, OP_layernorm_dw, OP_layernorm_back, reads_same, false},
    {OP_rmsnorm_dx, OP_rmsnorm_dw, OP_rmsnorm_back, reads_same, false},
    {OP_headnorm_dx, OP_headnorm_dw, OP_headnorm_back, reads_same, false},
    {OP_layernorm_back, OP_bias_dw, OP_layernorm_back_bias, sums_residual, false},
    {OP_linear_dgelu, OP_bias_dw, OP_linear_dgelu_bias, sums_output, false},
    {OP_quantize, OP_quantize_turned, OP_quantize_both, quantizes_same, true},
    {OP_quantize_by, OP_quantize_by_turned, OP_quantize_by, quantizes_same, true},
    {OP_rounds_dx, OP_rounds_dw, OP_rounds_back, loops_same, true},
};
enum { N_PAIRS = sizeof pair / sizeof *pair };

OpId lower_pair_op(OpId op, OpId also)
{
    for (int i = 0; i < N_PAIRS; i++)
        if (pair[i].op == op && pair[i].also == also) return pair[i].both;
    return N_OPS;
}

bool lower_is_spare(const Node *joined, int output)
{
    return joined->op == OP_rounds_dw && output == 0;
}

/* True if the node alone writes its outputs, all gradients of parameters. The order of several
 * terms of a sum matters, so none of them may move. */
static bool writes_alone(const Graph *g, int index)
{
    for (int k = 0; k < g->node[index].n_out; k++)
        if (g->value[g->node[index].out[k]].role != ROLE_DPARAM) return false;
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_out && i != index; j++)
            for (int k = 0; k < g->node[index].n_out; k++)
                if (g->node[i].out[j] == g->node[index].out[k]) return false;
    return true;
}

/* The position in the list of the phase of a node that a row of the table lets join n, or -1. */
static int find_also(const LowerContext *l, Phase phase, int row, const Node *n)
{
    const Orders *o = &l->orders;
    for (int i = 0; i < o->n[phase]; i++) {
        const int index = o->list[phase][i];
        const Node *also = &l->g->node[index];
        if (also->op == pair[row].also && pair[row].fits(n, also) &&
            (pair[row].equal || writes_alone(l->g, index)))
            return i;
    }
    return -1;
}

/* Chains the nodes that join the node at a position of the list behind it. */
static void join_others(LowerContext *l, Phase phase, int at, bool *joined)
{
    int *list = l->orders.list[phase], *with = l->orders.with[phase];
    const int index = list[at];
    const Node *n = &l->g->node[index];
    int last = index;
    OpId op = n->op;
    for (int row = 0; row < N_PAIRS; row++) {
        const int found = pair[row].op == op ? find_also(l, phase, row, n) : -1;
        if (found < 0 || joined[list[found]]) continue;
        const int also = list[found];
        op = pair[row].both;
        with[last] = also;
        last = also;
        joined[also] = true;
        if (!pair[row].equal || found > at) continue;
        list[found] = index; /* readers of `also` may come before the node */
        list[at] = also;
        at = found;
    }
}

Err lower_pairs(LowerContext *l, Phase phase)
{
    Orders *o = &l->orders;
    bool *joined;
    int n = 0;
    TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &o->with[phase]));
    TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &joined));
    for (int i = 0; i < l->g->n_nodes; i++) o->with[phase][i] = NO_NODE;
    for (int i = 0; i < o->n[phase]; i++) join_others(l, phase, i, joined);
    for (int i = 0; i < o->n[phase]; i++)
        if (!joined[o->list[phase][i]]) o->list[phase][n++] = o->list[phase][i];
    o->n[phase] = n;
    return OK;
}
