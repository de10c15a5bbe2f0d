/* fuse_add.c -- a sum computed in the epilogue of the GEMM that makes one of its terms.
 *
 *     before:  p = linear a w bias;  y = add x p
 *     after:   y = linear_add a w x bias         x is read, and stays
 *
 * The same for a GEMM in FP8 with delayed scaling, whose scales come after w.
 *
 * If p is a partial sum over ranks, the add reads the result of the transfer, not p, so nothing
 * matches. */
#include "compile/fuse.h"

/* The GEMM in FP8 that makes v; its operand was quantized by a delayed scale. */
static int fp8_gemm(const Graph *g, const Node *reader, Value v)
{
    const int gemm = fuse_gemm(g, reader, v, OP_linear_fp8);
    if (gemm == NO_NODE) return NO_NODE;
    const int scale = graph_maker(g, g->node[gemm].in[2]);
    return scale != NO_NODE && g->node[scale].op == OP_part ? gemm : NO_NODE;
}

Err fuse_add(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        /* The sum is mostly x + f(x), so the second term is tried first. */
        for (int side = 1; n->op == OP_add && side >= 0; side--) {
            const Value p = n->in[side], x = n->in[1 - side];
            const int plain = fuse_gemm(g, n, p, OP_linear);
            const int gemm = plain == NO_NODE ? fp8_gemm(g, n, p) : plain;
            if (gemm == NO_NODE || p == x || graph_readers(g, p) != 1) continue;
            const Node *made = &g->node[gemm];
            const int before = plain == NO_NODE ? 4 : 2; /* operands before x */
            Value in[6];
            for (int k = 0; k < made->n_in; k++) in[k + (k >= before)] = made->in[k];
            in[before] = x;
            *found = true;
            return fuse_into(g, i, gemm, plain == NO_NODE ? OP_linear_fp8_add : OP_linear_add,
                             made->n_in + 1, in);
        }
    }
    return OK;
}
