/* fuse_experts.c -- GEMMs over the rows of experts that are added or end in a swiglu, as one.
 *
 *     before:  gate = grouped_linear x w;  up = grouped_linear x v;  y = grouped_swiglu gate up
 *     after:   gate, up, y = grouped_linear_swiglu x w v
 *
 *     before:  d.y = grouped_linear_dx dy w;  d.gate, d.up = grouped_swiglu_dx d.y gate up
 *     after:   d.gate, d.up = grouped_linear_dswiglu dy w gate up           d.y does not exist
 *
 *     before:  a = grouped_linear_dx d.gate w;  s = grouped_linear_dx d.up v a
 *     after:   s = grouped_linear_dx2 d.gate w d.up v
 *
 * The first is done if gate and up have other readers: else they die at once, and need no memory
 * after the swiglu. Recomputed nodes stay apart: gate and up are recomputed for I, y for W, each
 * right before its reader. All parts have the same offsets. */
#include "compile/fuse.h"

#include <string.h>

static Err fuse_swiglu(Graph *g, int i, bool *found)
{
    Node *n = &g->node[i];
    const Value gate = n->in[0], up = n->in[1], offsets = n->in[2];
    if (n->recomputed || graph_readers(g, gate) < 2 || graph_readers(g, up) < 2) return OK;
    const int first = fuse_gemm(g, n, gate, OP_grouped_linear);
    const int second = fuse_gemm(g, n, up, OP_grouped_linear);
    if (first == NO_NODE || second == NO_NODE || first == second) return OK;
    const Node *a = &g->node[first], *b = &g->node[second];
    if (a->in[0] != b->in[0] || a->in[2] != offsets || b->in[2] != offsets) return OK;
    const Value in[] = {a->in[0], a->in[1], b->in[1], offsets}, y = n->out[0];
    n->out[0] = gate, n->out[1] = up, n->out[2] = y;
    n->keep[1] = n->keep[2] = SLOT_ZERO;
    n->n_out = 3;
    g->node[second].n_out = 0;
    *found = true;
    return fuse_into(g, i, first, OP_grouped_linear_swiglu, 4, in);
}

static Err fuse_dswiglu(Graph *g, int i, bool *found)
{
    const Node *n = &g->node[i];
    const Value offsets = n->in[3];
    if (graph_readers(g, n->in[0]) != 1) return OK;
    const int gemm = fuse_gemm(g, n, n->in[0], OP_grouped_linear_dx);
    if (gemm == NO_NODE || g->node[gemm].n_in != 3 || g->node[gemm].in[2] != offsets) return OK;
    const Value in[] = {g->node[gemm].in[0], g->node[gemm].in[1], offsets, n->in[1], n->in[2]};
    *found = true;
    return fuse_into(g, i, gemm, OP_grouped_linear_dswiglu, 5, in);
}

static Err fuse_pair(Graph *g, int i, bool *found)
{
    Node *n = &g->node[i];
    if (n->n_in != 4 || graph_readers(g, n->in[3]) != 1) return OK; /* in[3]: what it adds to */
    const int gemm = fuse_gemm(g, n, n->in[3], OP_grouped_linear_dx);
    if (gemm == NO_NODE || g->node[gemm].n_in != 3 || g->node[gemm].in[2] != n->in[2]) return OK;
    const Node *a = &g->node[gemm];
    const Value in[] = {a->in[0], a->in[1], n->in[0], n->in[1], n->in[2]};
    n->keep[0] = SLOT_ZERO;
    *found = true;
    return fuse_into(g, i, gemm, OP_grouped_linear_dx2, 5, in);
}

Err fuse_experts(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes && !*found; i++) {
        const OpId op = g->node[i].op;
        if (op == OP_grouped_swiglu) TRY(fuse_swiglu(g, i, found));
        if (op == OP_grouped_swiglu_dx) TRY(fuse_dswiglu(g, i, found));
        if (op == OP_grouped_linear_dx) TRY(fuse_pair(g, i, found));
    }
    return OK;
}
