/* balance.c -- the loads of experts over data-parallel ranks, for balance losses of level global.
 *
 *   before:  ds = route_dx dgate s expert load             load: of the micro-batch
 *   after:   all = wait (all_reduce load)                  over dp
 *            ds = route_dx dgate s expert all
 *
 * place has summed load over tp and cp. The sum over dp does not depend on dy, so it runs in F. All
 * ranks along dp run micro-batch j at the same place of their lists, if need be an empty one. */
#include "compile/compile.h"

#include "ir/build.h"

enum { LOAD = 3 }; /* operand of route_dx */

static Value sum_over_dp(Graph *g, const CompileOptions *o, Value load)
{
    const unsigned dp = mesh_axes(o->mesh, VIEW_DENSE, "dp");
    const Dims dims = g->value[load].dims;
    TransferPart move = {.number = graph_transfers(g), .reduce = REDUCE_SUM, .axes = dp};
    const Err err = mesh_group(o->mesh, VIEW_DENSE, dp, o->rank, g->arena, &move.group);
    if (err != OK) g->err = err;
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    Node *n = g->err == OK ? graph_node(g, OP_all_reduce, &attr, 1, &load, &dims, 1) : NULL;
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    const Value sum = n->out[0];
    g->value[sum].dtype = g->value[load].dtype;
    return wait_for(g, sum);
}

Err balance_loads(Graph *g, const CompileOptions *o)
{
    const Node *old = g->node;
    const int n = g->n_nodes;
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (int i = 0; i < n; i++) {
        Node node = old[i], *room;
        if (node.op == OP_route_dx) {
            TRY(ARENA_NEW(g->arena, node.n_in, &node.in));
            for (int j = 0; j < node.n_in; j++) node.in[j] = old[i].in[j];
            node.in[LOAD] = sum_over_dp(g, o, node.in[LOAD]);
            TRY(graph_err(g));
        }
        TRY(graph_append(g, &node, &room));
    }
    return graph_check(g);
}
