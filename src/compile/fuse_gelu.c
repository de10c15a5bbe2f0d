/* fuse_gelu.c -- gelu computed in the epilogue of the GEMM that makes its input.
 *
 *     before:  u = linear x w bias;  h = gelu u         and gelu_dx reads u later
 *     after:   h, u = linear_gelu x w bias
 *
 * If u has no other reader, the two stay apart, since u then dies at once. Recomputed nodes stay
 * apart too: u is recomputed for I and h for W, each right before its reader. */
#include "compile/fuse.h"

Err fuse_gelu(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        Node *n = &g->node[i];
        if (n->op != OP_gelu || n->recomputed || graph_readers(g, n->in[0]) < 2) continue;
        const Value u = n->in[0];
        const int gemm = fuse_gemm(g, n, u, OP_linear);
        if (gemm == NO_NODE) continue;
        const Node *made = &g->node[gemm];
        n->out[1] = u;
        n->keep[1] = SLOT_ZERO;
        n->n_out = 2;
        *found = true;
        return fuse_into(g, i, gemm, OP_linear_gelu, made->n_in, made->in);
    }
    return OK;
}
