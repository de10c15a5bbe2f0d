/* context_along.c -- attention along a token dim that is sharded over cp, as a ring: keys travel
 * instead of being gathered.
 *
 *   before:  kk = wait (all_gather k);  vv = wait (all_gather v)        as place left it
 *            o, lse = attention_along q kk vv
 *   after:   o0, lse0 = attention_along q k v       keys of this rank
 *            k1 = wait (shift k);  v1 = wait (shift v)                  from the rank before
 *            o, lse = attention_along q k1 v1 o0 lse0
 *
 * A shift is an all-to-all in which every rank sends to the next one alone. Backward, keys travel
 * again, and sums of their gradients one rank behind them: those of block B start on rank B + 1 and
 * end on rank B, which adds its own. So a rank sends 2 (P - 1) blocks forward and 4 (P - 1)
 * backward. There is no mask: all visits have equal work. Sums are wide and rounded once. */
#include "compile/compile.h"
#include "compile/context/gathers.h"
#include "ir/build.h"
#include "ir/pairs.h"
#include "layout/holding.h"

typedef struct {
    Graph *g;
    const CompileOptions *o;
    Arena *temp;
    OldNodes old;
    int ranks, me;
    const TransferPart *gather;
    int64_t *rows; /* [ranks]: of the attended dim */
} AlongPass;

/* The rows of each rank's block of keys, [e,s,a,g,c]. */
static Err find_rows(AlongPass *w, Value local, Value whole)
{
    const Dims *all = &w->g->value[whole].dims;
    Shape shape = {.ndim = 1, .n = {all->dim[1].cap}};
    Layout l = layout_replicate(VIEW_DENSE);
    const Layout *of = &w->g->value[local].layout;
    for (int i = 0; i < of->n_cuts; i++)
        if (of->cut[i].dim == 1) {
            l.cut[l.n_cuts] = of->cut[i];
            l.cut[l.n_cuts++].dim = 0;
        }
    w->ranks = w->gather->group.n;
    TRY(ARENA_NEW(w->temp, w->ranks, &w->rows));
    for (int i = 0; i < w->ranks; i++) {
        const int rank = w->gather->group.rank[i];
        w->rows[i] = holding_of(&l, w->o->mesh, &shape, rank).dim[0].count;
        if (rank == w->o->rank) w->me = i;
    }
    return OK;
}

static int before(const AlongPass *w, int by) { return (w->me - by + w->ranks) % w->ranks; }

/* The block that rank me - 1 has, for the one that this rank has; dims: of the own block. */
static Value shift(AlongPass *w, Value x, int block, Dims dims)
{
    Graph *g = w->g;
    int64_t *counts;
    if (g->err != OK) return NO_VALUE;
    const DType dtype = g->value[x].dtype;
    const int64_t sent = dims_count(&g->value[x].dims);
    dims.dim[1] = dim_of(w->rows[block]);
    g->err = ARENA_NEW(g->arena, 2 * w->ranks, &counts);
    if (g->err != OK) return NO_VALUE;
    counts[(w->me + 1) % w->ranks] = sent;
    counts[w->ranks + before(w, 1)] = dims_count(&dims);
    const TransferPart move = {.number = graph_transfers(g),
                               .axes = w->gather->axes,
                               .group = w->gather->group,
                               .from_counts = counts,
                               .to_counts = counts + w->ranks};
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    Node *n = graph_node(g, OP_all_to_all, &attr, 1, &x, &dims, 1);
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    g->value[n->out[0]].dtype = dtype;
    return wait_for(g, n->out[0]);
}

/* x, read once `first` exists: keys travel again when the gradient of o has arrived. */
static Value read_after(Graph *g, Value x, Value first)
{
    if (g->err != OK) return NO_VALUE;
    const Dims dims = g->value[x].dims;
    const Value in[] = {x, first};
    const Node *n = graph_node(g, OP_after, NULL, 2, in, &dims, 1);
    return n ? n->out[0] : NO_VALUE;
}

/* Makes `into`, a value of the old graph, of v, in its type. */
static void finish(Graph *g, Value v, Value into)
{
    if (g->err == OK && g->value[v].dtype != g->value[into].dtype)
        v = cast(g, v, g->value[into].dtype);
    for (int i = g->n_nodes - 1; i >= 0 && g->err == OK; i--)
        for (int j = 0; j < g->node[i].n_out; j++)
            if (g->node[i].out[j] == v) {
                g->node[i].out[j] = into;
                return;
            }
}

/* One visit with wide outputs. It carries on n_sums of them, the last operands. */
static Node *visit(AlongPass *w, OpId op, const Node *whole, int n_in, const Value *in, int n_sums)
{
    Graph *g = w->g;
    if (g->err != OK) return NULL;
    Node *n = graph_node(g, op, &whole->attr, n_in, in, NULL, whole->n_out);
    for (int j = 0; n && j < n->n_out; j++) {
        g->value[n->out[j]].dtype = dtype_wide(g->dtype);
        if (j < n_sums) n->keep[j] = SLOT_ONE;
    }
    return n;
}

static Err write_forward(AlongPass *w, const Node *whole, Value k, Value v)
{
    Graph *g = w->g;
    const Dims dims = g->value[k].dims;
    Value o = NO_VALUE, lse = NO_VALUE;
    for (int step = 0; step < w->ranks; step++) {
        if (step > 0) {
            k = shift(w, k, before(w, step), dims);
            v = shift(w, v, before(w, step), dims);
        }
        const Value in[] = {whole->in[0], k, v, o, lse};
        const Node *n = visit(w, OP_attention_along, whole, step ? 5 : 3, in, step ? 2 : 0);
        TRY(graph_err(g));
        o = n->out[0], lse = n->out[1];
    }
    finish(g, lse, whole->out[1]);
    finish(g, o, whole->out[0]);
    return graph_err(g);
}

/* local: the gradients of this rank's keys and values. */
static Err write_backward(AlongPass *w, const Node *whole, Value k, Value v, const Value local[2])
{
    Graph *g = w->g;
    const Dims dims = g->value[k].dims;
    const Value dout = whole->in[3], keys[2] = {k, v};
    Value dq = NO_VALUE, sum[2] = {NO_VALUE, NO_VALUE};
    k = read_after(g, k, dout), v = read_after(g, v, dout);
    for (int step = 1; step <= w->ranks; step++) {
        const bool own = step == w->ranks;
        if (!own) k = shift(w, k, before(w, step), dims), v = shift(w, v, before(w, step), dims);
        for (int i = 0; i < 2 && step > 1; i++) sum[i] = shift(w, sum[i], before(w, step), dims);
        const Value in[] = {whole->in[0],
                            own ? keys[0] : k,
                            own ? keys[1] : v,
                            dout,
                            whole->in[4],
                            whole->in[5],
                            dq};
        const Node *n = visit(w, OP_attention_along_part_dx, whole, step > 1 ? 7 : 6, in, step > 1);
        TRY(graph_err(g));
        dq = n->out[0];
        const Value part[2] = {n->out[1], n->out[2]};
        for (int i = 0; i < 2; i++) sum[i] = step > 1 ? add(g, sum[i], part[i]) : part[i];
    }
    finish(g, dq, whole->out[0]);
    for (int i = 0; i < 2; i++) finish(g, sum[i], local[i]);
    return graph_err(g);
}

/* True if its keys are gathered; else its sequences are on one rank. */
static bool is_cut(const AlongPass *w, const Node *n)
{
    const Dims *q = &w->g->value[n->in[0]].dims, *k = &w->g->value[n->in[1]].dims;
    return op_attends_along(n->op) && !dim_same(q->dim[1], k->dim[1]);
}

/* Finds the local keys, and the gradients of them, and drops the nodes between. */
static Err drop_transfers(AlongPass *w, const Node *n, Value value[4])
{
    const TransferPart *other;
    TRY(gathers_drop(&w->old, n->in[1], &w->gather, &value[0]));
    TRY(gathers_drop(&w->old, n->in[2], &other, &value[1]));
    for (int j = 1; j <= 2 && n->op == OP_attention_along_dx; j++)
        TRY(gathers_drop_scatter(&w->old, n->out[j], &value[1 + j]));
    return OK;
}

static Err rewrite(AlongPass *w, const Node *n)
{
    Value value[4];
    TRY(drop_transfers(w, n, value));
    TRY(find_rows(w, value[0], n->in[1]));
    return n->op == OP_attention_along ? write_forward(w, n, value[0], value[1])
                                       : write_backward(w, n, value[0], value[1], value + 2);
}

static Err along_in(AlongPass *w)
{
    Graph *g = w->g;
    int *maker;
    Value value[4];
    TRY(graph_makers(g, w->temp, &maker));
    w->old = (OldNodes){.g = g, .node = g->node, .n = g->n_nodes, .maker = maker};
    TRY(ARENA_NEW(w->temp, g->n_nodes + 1, &w->old.dropped));
    for (int i = 0; i < w->old.n; i++)
        if (is_cut(w, &w->old.node[i])) TRY(drop_transfers(w, &w->old.node[i], value));
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (int i = 0; i < w->old.n; i++) {
        Node *room;
        if (is_cut(w, &w->old.node[i]))
            TRY(rewrite(w, &w->old.node[i]));
        else if (!w->old.dropped[i])
            TRY(graph_append(g, &w->old.node[i], &room));
    }
    return OK;
}

Err context_along(Graph *g, const CompileOptions *o)
{
    AlongPass w = {.g = g, .o = o};
    Arena temp;
    TRY(arena_open(&temp, "attention along a dim", (size_t)1 << 30));
    w.temp = &temp;
    const Err err = along_in(&w);
    arena_close(&temp);
    TRY(err);
    return graph_check(g);
}
