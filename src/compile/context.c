/* context.c -- attention over ranks by a plan: keys travel instead of being gathered.
 *
 *   before:  kk = wait (all_gather k);  vv = wait (all_gather v)        as place left it
 *            o, lse = attention q kk vv
 *   after:   k1 = wait (shift k);  v1 = wait (shift v)                  ring of 2 ranks
 *            o0, lse0 = attention q k v          keys of this rank
 *            o1, lse1 = attention q k1 v1        keys of the rank before
 *            o, lse = attention_merge o0 lse0 o1 lse1
 *
 * The plan (context/plan.h) lists visits and moves; this pass writes them out for one rank. A move
 * is an all_to_all in which one peer sends and one receives. All ranks of the group have the same
 * nodes in the same order, whatever the mask leaves of a visit.
 *
 * Backward, keys travel again: those nodes are marked as recomputed, so they run in the backward
 * phases, and F keeps no keys of other ranks. Partial results are wide: o, dq, dk and dv are
 * rounded to the type of the unit once. */
#include "compile/context/check.h"

#include "compile/compile.h"
#include "compile/context/write.h"
#include "layout/holding.h"

typedef struct {
    Graph *g;
    const CompileOptions *o;
    Arena *temp;
    int *maker; /* [n_values] of the old graph */
    Node *old;  /* the old nodes */
    int n_old;
    bool *dropped;       /* [n_old] */
    ContextPlan plan[2]; /* forward, backward */
    ContextWriter w;     /* of the attention at hand */
} ContextPass;

static Err not_gathered(const ContextPass *w, Value v)
{
    return err_fail(ERR_CHECK,
                    "graph %s: %%%d %s: attention reads it, but it is not gathered over cp",
                    w->g->kind, v, w->g->value[v].name);
}

/* Looks through packs of a message. */
static int maker_before_packs(const ContextPass *w, Value v)
{
    int m = w->maker[v];
    while (m != NO_NODE && w->old[m].op == OP_pack) m = w->maker[w->old[m].in[0]];
    return m;
}

/* Drops the maker of v and those of its operands, up to the gather's operand, which is returned. */
static Err drop_gather(ContextPass *w, Value v, const TransferPart **move, Value *local)
{
    const int wait = maker_before_packs(w, v);
    if (wait == NO_NODE || w->old[wait].op != OP_wait) return not_gathered(w, v);
    const int gather = w->maker[w->old[wait].in[0]];
    if (gather == NO_NODE || w->old[gather].op != OP_all_gather) return not_gathered(w, v);
    for (int m = w->maker[v]; m != gather; m = w->maker[w->old[m].in[0]]) w->dropped[m] = true;
    w->dropped[gather] = true;
    *move = &w->g->move[w->old[gather].attr.move.index];
    *local = w->old[gather].in[0];
    for (int m; (m = w->maker[*local]) != NO_NODE && w->old[m].op == OP_pack;) {
        w->dropped[m] = true;
        *local = w->old[m].in[0];
    }
    return OK;
}

static int reader_of(const ContextPass *w, Value v)
{
    for (int i = 0; i < w->n_old; i++)
        for (int j = 0; j < w->old[i].n_in; j++)
            if (w->old[i].in[j] == v) return i;
    return NO_NODE;
}

/* Drops the reduce-scatter of a partial gradient; *local is the value that it makes. */
static Err drop_scatter(ContextPass *w, Value v, Value *local)
{
    for (bool scattered = false;;) {
        const int i = reader_of(w, v);
        const OpId op = i == NO_NODE ? OP_add : w->old[i].op;
        if (op != OP_pack && op != OP_reduce_scatter && !(scattered && op == OP_wait)) {
            *local = v;
            return scattered ? OK : not_gathered(w, v);
        }
        scattered = scattered || op == OP_reduce_scatter;
        w->dropped[i] = true;
        v = w->old[i].out[0];
    }
}

/* The rows of a block: one run of them, or spans. */
static Err find_rows(Arena *arena, const HeldSpans *h, ContextKeys *out)
{
    const Span bounds = held_bounds(h);
    int64_t *span, skip = h->from, left = h->count;
    out->at = bounds.lo;
    if (bounds.hi - bounds.lo == h->count) return OK;
    TRY(ARENA_NEW(arena, 3 * h->n_spans, &span));
    for (int i = 0; i < h->n_spans && left > 0; i++) {
        const int64_t n = span_count(h->span[i]), first = skip < n ? skip : n;
        const int64_t taken = n - first < left ? n - first : left, step = h->span[i].step;
        const int64_t lo = h->span[i].lo + first * step;
        skip -= first;
        left -= taken;
        if (taken == 0) continue;
        span[3 * out->n_spans] = lo;
        span[3 * out->n_spans + 1] = lo + (taken - 1) * step + 1;
        span[3 * out->n_spans++ + 2] = step;
    }
    out->span = span;
    return OK;
}

/* The tokens of the ranks of the group, from the layout of the local keys. */
static Err find_blocks(ContextPass *w, Value local, Value whole)
{
    const Graph *g = w->g;
    const Layout *l = &g->value[local].layout;
    const Dims *all = &g->value[whole].dims;
    Layout tokens = layout_replicate(VIEW_DENSE);
    Shape shape = {.ndim = all->ndim};
    for (int i = 0; i < shape.ndim; i++) shape.n[i] = all->dim[i].cap;
    for (int i = 0; i < l->n_cuts; i++)
        if (l->cut[i].dim == 0) tokens.cut[tokens.n_cuts++] = l->cut[i];
    TRY(ARENA_NEW(w->temp, w->w.ranks, &w->w.block));
    for (int b = 0; b < w->w.ranks; b++) {
        const Holding h = holding_of(&tokens, w->o->mesh, &shape, w->w.gather->group.rank[b]);
        w->w.block[b] = (ContextKeys){.rows = dim_of(h.kept.n[0])};
        TRY(find_rows(g->arena, &h.dim[0], &w->w.block[b]));
        if (all->dim[0].slot != NO_SLOT) w->w.block[b].rows = dim_held(all->dim[0].slot, &h.dim[0]);
    }
    return OK;
}

static Err open_values(ContextPass *w, Value k, Value v)
{
    TRY(ARENA_NEW(w->temp, w->w.ranks, &w->w.at));
    for (int b = 0; b < w->w.ranks; b++)
        w->w.at[b] = (BlockValues){NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE};
    w->w.at[w->w.me].k = k;
    w->w.at[w->w.me].v = v;
    return OK;
}

static Err make_plans(ContextPass *w)
{
    /* The tokens decide which visits have work, not which steps there are. */
    const ContextShape shape = {w->w.ranks, w->w.ranks, TOKENS_CONTIGUOUS, true};
    if (w->plan[0].shape.ranks == w->w.ranks) return OK; /* made for the attention before */
    TRY(context_plan(w->o->context, &shape, w->temp, &w->plan[0]));
    TRY(context_check(&w->plan[0], w->temp, NULL));
    TRY(context_backward(&w->plan[0], w->temp, &w->plan[1]));
    return context_check(&w->plan[1], w->temp, NULL);
}

/* Finds the local values behind the operands and results of attention, and drops the nodes between.
 * value: k and v; of attention_dx also d.q, d.k and d.v. */
static Err drop_transfers(ContextPass *w, const Node *n, Value value[5])
{
    const TransferPart *other;
    TRY(drop_gather(w, n->in[1], &w->w.gather, &value[0]));
    TRY(drop_gather(w, n->in[2], &other, &value[1]));
    value[2] = n->out[0];
    for (int j = 1; j <= 2 && n->op == OP_attention_dx; j++)
        TRY(drop_scatter(w, n->out[j], &value[2 + j]));
    return OK;
}

static Err rewrite(ContextPass *w, const Node *n)
{
    Value value[5];
    TRY(drop_transfers(w, n, value));
    w->w.ranks = w->w.gather->group.n;
    for (int i = 0; i < w->w.ranks; i++)
        if (w->w.gather->group.rank[i] == w->o->rank) w->w.me = i;
    w->w.backward = n->op == OP_attention_dx;
    TRY(make_plans(w));
    TRY(find_blocks(w, value[0], n->in[1]));
    TRY(open_values(w, value[0], value[1]));
    return w->w.backward ? context_write_backward(&w->w, &w->plan[1], n, &value[2])
                         : context_write_forward(&w->w, &w->plan[0], n);
}

static bool is_attention(const Node *n)
{
    return n->op == OP_attention || n->op == OP_attention_dx;
}

static Err context_in(ContextPass *w)
{
    Graph *g = w->g;
    Value value[5];
    w->old = g->node;
    w->n_old = g->n_nodes;
    TRY(graph_makers(g, w->temp, &w->maker));
    TRY(ARENA_NEW(w->temp, w->n_old + 1, &w->dropped));
    for (int i = 0; i < w->n_old; i++)
        if (is_attention(&w->old[i])) TRY(drop_transfers(w, &w->old[i], value));
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (int i = 0; i < w->n_old; i++) {
        Node *room;
        if (is_attention(&w->old[i]))
            TRY(rewrite(w, &w->old[i]));
        else if (!w->dropped[i])
            TRY(graph_append(g, &w->old[i], &room));
    }
    return OK;
}

Err context(Graph *g, const CompileOptions *o)
{
    ContextPass w = {.g = g, .o = o, .w = {.g = g}};
    Arena temp;
    TRY(arena_open(&temp, "context", (size_t)1 << 32));
    w.temp = &temp;
    const Err err = context_in(&w);
    arena_close(&temp);
    TRY(err);
    return graph_check(g);
}
