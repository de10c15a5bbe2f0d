/* fuse_residual.c -- a sum computed by the norm's gradient that makes one of its terms.
 *
 *     before:  s = add r (layernorm_dx dy x w mean rstd)
 *     after:   s = layernorm_dx dy x w mean rstd r        r is read, and stays as it is
 *
 * A residual stream has one such sum after each norm. r may be an input of the unit that others
 * still read: unlike the sum of fuse_sum, this one is not made in place. */
#include "compile/fuse.h"

#include <string.h>

static bool takes_residual(const Node *n)
{
    if (n->op == OP_layernorm_dx) return n->n_in == 5;
    return (n->op == OP_rmsnorm_dx || n->op == OP_headnorm_dx) && n->n_in == 4;
}

Err fuse_residual(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        Node *n = &g->node[i];
        for (int side = 0; n->op == OP_add && n->n_out && side < 2; side++) {
            const Value r = n->in[1 - side], dx = n->in[side];
            const int maker = graph_maker(g, dx);
            if (maker == NO_NODE || r == dx || graph_readers(g, dx) != 1) continue;
            Node *norm = &g->node[maker];
            if (!takes_residual(norm) || norm->chunk != n->chunk || g->value[dx].role != ROLE_LOCAL)
                continue;
            Value *in;
            TRY(ARENA_NEW(g->arena, norm->n_in + 1, &in));
            memcpy(in, norm->in, (size_t)norm->n_in * sizeof *in);
            in[norm->n_in] = r;
            n->op = norm->op;
            n->attr = norm->attr;
            n->in = in;
            n->n_in = norm->n_in + 1;
            norm->n_out = 0;
            *found = true;
            return graph_tidy(g);
        }
    }
    return OK;
}
