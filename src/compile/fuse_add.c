/* fuse_add.c -- a sum computed in the epilogue of the GEMM that makes one of its terms.
 *
 *     before:  p = linear a w bias;  y = add x p
 *     after:   y = linear_add a w x bias         x is read, and stays
 *
 * If p is a partial sum over ranks, the add reads the result of the transfer, not p, so nothing
 * matches. */
#include "compile/fuse.h"

Err fuse_add(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        /* The sum is mostly x + f(x), so the second term is tried first. */
        for (int side = 1; n->op == OP_add && side >= 0; side--) {
            const Value p = n->in[side], x = n->in[1 - side];
            const int gemm = fuse_gemm(g, n, p, OP_linear);
            if (gemm == NO_NODE || p == x || graph_readers(g, p) != 1) continue;
            const Node *made = &g->node[gemm];
            const Value in[] = {made->in[0], made->in[1], x,
                                made->n_in > 2 ? made->in[2] : NO_VALUE};
            *found = true;
            return fuse_into(g, i, gemm, OP_linear_add, made->n_in + 1, in);
        }
    }
    return OK;
}
