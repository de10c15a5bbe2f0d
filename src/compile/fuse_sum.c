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

/* True for GEMMs that make a gradient of activations. */
static bool may_add(OpId op)
{
    return op == OP_linear_dx || op == OP_grouped_linear_dx || op == OP_linear_fp8_dx ||
           op == OP_linear_blocks_dx || op == OP_grouped_linear_fp8_dx;
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
            const int n_in = op_sum_operand(gemm->op, 0);
            if (!may_add(gemm->op)) continue;
            if (gemm->n_in != n_in || gemm->chunk != n->chunk) continue;
            if (!may_be_added_to(g, a)) continue;
            n->op = gemm->op;
            n->attr = gemm->attr;
            n->keep[0] = SLOT_ONE;
            gemm->n_out = 0;
            TRY(ARENA_NEW(g->arena, n_in + 1, &n->in));
            memcpy(n->in, gemm->in, (size_t)n_in * sizeof *n->in);
            n->in[n_in] = a;
            n->n_in = n_in + 1;
            *found = true;
            return graph_tidy(g);
        }
    }
    return OK;
}
