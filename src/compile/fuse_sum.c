/* fuse_sum.c -- a sum accumulated by the GEMM that makes one of its terms.
 *
 *     before:  s = add a (linear_dx dy w)
 *     after:   s = linear_dx dy w a         added to the storage of a */
#include "compile/fuse.h"

#include <string.h>

/* True if a GEMM may add to a: made here, without other readers, in storage of its own. */
static bool may_be_added_to(const Graph *g, Value a)
{
    const int maker = graph_maker(g, a);
    return maker != NO_NODE && g->value[a].role == ROLE_LOCAL && graph_readers(g, a) == 1 &&
           op_info(g->node[maker].op)->class != CLASS_VIEW && g->node[maker].op != OP_wait;
}

Err fuse_sum(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        Node *n = &g->node[i];
        for (int side = 0; n->op == OP_add && n->n_out && side < 2; side++) {
            const Value a = n->in[1 - side], b = n->in[side];
            const int maker = graph_maker(g, b);
            if (maker == NO_NODE || a == b || graph_readers(g, b) != 1) continue;
            Node *gemm = &g->node[maker];
            if (gemm->op != OP_linear_dx || gemm->n_in != 2 || gemm->chunk != n->chunk) continue;
            if (!may_be_added_to(g, a)) continue;
            const Value in[] = {gemm->in[0], gemm->in[1], a};
            n->op = OP_linear_dx;
            n->attr = gemm->attr;
            n->keep[0] = SLOT_ONE;
            gemm->n_out = 0;
            TRY(ARENA_NEW(g->arena, 3, &n->in));
            memcpy(n->in, in, sizeof in);
            n->n_in = 3;
            *found = true;
            return graph_tidy(g);
        }
    }
    return OK;
}
