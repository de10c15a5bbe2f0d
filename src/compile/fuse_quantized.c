/* fuse_quantized.c -- values that are written in 8 bits by the kernel that makes them, with their
 * transposed copy and their amax. Delayed scaling knows their scale before.
 *
 *     before:  y = rmsnorm x w;  y.fp8, m = quantize_by y s;  y.fp8.t = quantize_by_turned y s
 *     after:   y.fp8, m, y.fp8.t = rmsnorm_by x w s              y is never stored
 *
 * So are swiglu and, with its two gradients side by side, swiglu_dx. */
#include "compile/fuse.h"

#include <string.h>

/* The readers of a value: `turned` may be NO_NODE. */
typedef struct {
    int plain, turned;
} QuantizedReaders;

/* True if only one quantize_by and at most one quantize_by_turned, with one scale, read v. */
static bool find_readers(const Graph *g, Value v, bool recomputed, QuantizedReaders *out)
{
    *out = (QuantizedReaders){NO_NODE, NO_NODE};
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        bool reads = false;
        for (int k = 0; k < n->n_in && n->n_out; k++) reads = reads || n->in[k] == v;
        if (!reads) continue;
        int *place = n->op == OP_quantize_by          ? &out->plain
                     : n->op == OP_quantize_by_turned ? &out->turned
                                                      : NULL;
        if (!place || *place != NO_NODE || n->recomputed != recomputed) return false;
        *place = i;
    }
    if (out->plain == NO_NODE || g->value[v].role != ROLE_LOCAL) return false;
    return out->turned == NO_NODE || g->node[out->plain].in[1] == g->node[out->turned].in[1];
}

/* The node whose result, or results side by side, is v, if there is such a kernel; *op: with 8
 * bits. */
static int find_maker(const Graph *g, Value v, OpId *op)
{
    const int maker = graph_maker(g, v);
    if (maker == NO_NODE) return NO_NODE;
    const Node *n = &g->node[maker];
    *op = n->op == OP_rmsnorm ? OP_rmsnorm_by : n->op == OP_swiglu ? OP_swiglu_by : N_OPS;
    if (*op != N_OPS) return maker;
    if (n->op != OP_join || n->n_in != 2 || n->attr.part.dim != 1) return NO_NODE;
    const int made = graph_maker(g, n->in[0]);
    if (made == NO_NODE || g->node[made].op != OP_swiglu_dx) return NO_NODE;
    *op = OP_swiglu_dx_by;
    for (int i = 0; i < 2; i++)
        if (g->node[made].out[i] != n->in[i] || graph_readers(g, n->in[i]) != 1) return NO_NODE;
    return made;
}

/* Turns the maker into `op`, which makes what its readers made. */
static Err write_quantized(Graph *g, int maker, OpId op, const QuantizedReaders *r)
{
    Node *n = &g->node[maker], *q = &g->node[r->plain];
    const double eps = op == OP_rmsnorm_by ? n->attr.kernel.norm.eps : 0;
    const Value rstd = op == OP_rmsnorm_by ? n->out[1] : NO_VALUE;
    Value *in;
    TRY(ARENA_NEW(g->arena, n->n_in + 1, &in));
    memcpy(in, n->in, (size_t)n->n_in * sizeof *in);
    in[n->n_in] = q->in[1];
    n->in = in;
    n->n_in++;
    n->op = op;
    n->attr = q->attr;
    n->attr.kernel.by.eps = eps;
    n->n_out = 0;
    n->out[n->n_out++] = q->out[0];
    if (rstd != NO_VALUE) n->out[n->n_out++] = rstd;
    n->out[n->n_out++] = q->out[1];
    q->n_out = 0;
    if (r->turned != NO_NODE) {
        n->out[n->n_out++] = g->node[r->turned].out[0];
        g->node[r->turned].n_out = 0;
    }
    return OK;
}

Err fuse_quantized(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        QuantizedReaders r;
        OpId op;
        const Node *n = &g->node[i];
        if (n->op != OP_quantize_by || !n->n_out || n->chunk) continue;
        const Value v = n->in[0];
        const int maker = find_maker(g, v, &op), join = graph_maker(g, v);
        if (maker == NO_NODE || g->node[maker].chunk ||
            !find_readers(g, v, g->node[maker].recomputed, &r))
            continue;
        if (op == OP_rmsnorm_by && g->value[v].dims.ndim != 2) continue;
        TRY(write_quantized(g, maker, op, &r));
        if (op == OP_swiglu_dx_by) g->node[join].n_out = 0;
        *found = true;
        return graph_tidy(g);
    }
    return OK;
}
