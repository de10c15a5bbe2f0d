/* lower_pairs.c -- two nodes that read the same, as one instruction, where a phase has both.
 *
 *     I     d.x = layernorm_dx d.h x w mean rstd r           W, which may come much later,
 *     W     d.w, d.b += layernorm_dw d.h x mean rstd         fills what would be idle
 *     B     d.x, d.w, d.b = layernorm_back d.h x w mean rstd r      d.h and x are read once
 *
 * Gradients of parameters stay in W where a schedule runs it apart: sums over ranks begin after W, and
 * what I left for them would have to be kept apart by micro-batch. A device gives the same bits
 * both ways. */
#include "compile/lower.h"

static const struct {
    OpId dx, dw, both;
} pair[] = {
    {OP_layernorm_dx, OP_layernorm_dw, OP_layernorm_back},
    {OP_rmsnorm_dx, OP_rmsnorm_dw, OP_rmsnorm_back},
    {OP_headnorm_dx, OP_headnorm_dw, OP_headnorm_back},
};
enum { N_PAIRS = sizeof pair / sizeof *pair };

static OpId dw_of(OpId dx)
{
    for (int i = 0; i < N_PAIRS; i++)
        if (pair[i].dx == dx) return pair[i].dw;
    return N_OPS;
}

OpId lower_pair_op(OpId dx)
{
    for (int i = 0; i < N_PAIRS; i++)
        if (pair[i].dx == dx) return pair[i].both;
    return N_OPS;
}

/* dw reads what dx does, but for w, which stands third there. */
static bool reads_same(const Node *dx, const Node *dw)
{
    for (int j = 0; j < dw->n_in; j++)
        if (dw->in[j] != dx->in[j < 2 ? j : j + 1]) return false;
    return true;
}

/* Of a sum with several terms the order counts, so none may move; nor may what this program reads. */
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

static int find_dw(const Lower *l, Phase phase, const Node *dx)
{
    const Orders *o = &l->orders;
    const OpId op = dw_of(dx->op);
    for (int i = 0; i < o->n[phase] && op != N_OPS; i++) {
        const int index = o->list[phase][i];
        const Node *n = &l->g->node[index];
        if (n->op == op && reads_same(dx, n) && writes_alone(l->g, index)) return index;
    }
    return NO_NODE;
}

Err lower_pairs(Lower *l, Phase phase)
{
    Orders *o = &l->orders;
    bool *gone;
    int n = 0;
    TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &o->with[phase]));
    TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &gone));
    for (int i = 0; i < l->g->n_nodes; i++) o->with[phase][i] = NO_NODE;
    for (int i = 0; i < o->n[phase]; i++) {
        const int dx = o->list[phase][i], dw = find_dw(l, phase, &l->g->node[dx]);
        if (dw == NO_NODE || gone[dw]) continue;
        o->with[phase][dx] = dw;
        gone[dw] = true;
    }
    for (int i = 0; i < o->n[phase]; i++)
        if (!gone[o->list[phase][i]]) o->list[phase][n++] = o->list[phase][i];
    o->n[phase] = n;
    return OK;
}
