/* fuse_dgelu.c -- the gradient of gelu, made with the product that it is the gradient's factor of.
 *
 *     before:  d.h = linear_dx dy w;  d.u = gelu_dx d.h u
 *     after:   d.u = linear_dgelu dy w u
 */
#include "compile/fuse.h"

Err fuse_dgelu(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->op != OP_gelu_dx || graph_readers(g, n->in[0]) != 1) continue;
        const int product = fuse_product(g, n, n->in[0], OP_linear_dx);
        if (product == NO_NODE || g->node[product].n_in != 2) continue;
        const Node *made = &g->node[product];
        const Value in[] = {made->in[0], made->in[1], n->in[1]};
        *found = true;
        return fuse_into(g, i, product, OP_linear_dgelu, 3, in);
    }
    return OK;
}
