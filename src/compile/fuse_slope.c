/* fuse_slope.c -- the gradient of a pointwise op, computed in the epilogue of the GEMM that makes
 * the gradient of its output.
 *
 *     before:  d.h = linear_dx dy w;  d.u = gelu_dx d.h u
 *     after:   d.u = linear_dgelu dy w u
 *
 *     before:  d.h = linear_dx dy w;  d.gate, d.up = swiglu_dx d.h gate up
 *     after:   d.gate, d.up = linear_dswiglu dy w gate up         d.h does not exist */
#include "compile/fuse.h"

static const struct {
    OpId op, both;
} slope[] = {
    {OP_gelu_dx, OP_linear_dgelu},
    {OP_swiglu_dx, OP_linear_dswiglu},
};

Err fuse_slope(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < (int)(sizeof slope / sizeof *slope); k++) {
            const Node *n = &g->node[i];
            if (n->op != slope[k].op || graph_readers(g, n->in[0]) != 1) continue;
            const int gemm = fuse_gemm(g, n, n->in[0], OP_linear_dx);
            if (gemm == NO_NODE || g->node[gemm].n_in != 2) continue;
            Value in[MAX_IN] = {g->node[gemm].in[0], g->node[gemm].in[1]};
            for (int j = 1; j < n->n_in; j++) in[1 + j] = n->in[j];
            *found = true;
            return fuse_into(g, i, gemm, slope[k].both, n->n_in + 1, in);
        }
    return OK;
}
