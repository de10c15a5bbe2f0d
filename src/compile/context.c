/* context.c -- attention over ranks by a plan: keys travel instead of being gathered.
 *
 *   before:  kk = wait (all_gather k);  vv = wait (all_gather v)        as place left it
 *            o, lse = attention q kk vv
 *   after:   send k; send v                                             ring of 2 ranks
 *            k1 = wait (recv after q);  v1 = wait (recv after q)
 *            o0, lse0 = attention q k v              keys of this rank
 *            o, lse = attention q k1 v1 o0 lse0      keys of the rank before, carried on in place
 *
 * The plan (context/plan.h) lists visits and moves; this pass writes them out for one rank. A rank
 * has the nodes of its own list: with some plans ranks differ.
 *
 * Backward, keys or queries travel again. Those moves begin after the gradient of o, so they run in
 * the backward phases, and F keeps nothing of other ranks. Partial results are wide: o, dq, dk and
 * dv are rounded to the type of the unit once.
 *
 * In slices the blocks of a plan are a rank's rows of all slices so far, which stay with it:
 *
 *     k.all = put_rows k;  block = part k.all              what visits read and moves send
 *     d.k.all += add_rows d.block;  d.k = get_rows d.k.all */
#include "compile/context/check.h"

#include "compile/compile.h"
#include "compile/context/gathers.h"
#include "compile/context/write.h"
#include "ir/build.h"
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
    int32_t number;      /* of the next transfer */
    Value *whole;        /* [n_values] of the old graph: keys of all slices; NO_VALUE: none yet */
    Value **scores;      /* [n_values]: of a lse: the scores of its rows, [ranks]; NULL: none */
    ContextWriter w;     /* of the attention at hand */
} ContextPass;

static OldNodes old_nodes(const ContextPass *w)
{
    return (OldNodes){w->g, w->old, w->n_old, w->maker, w->dropped};
}

/* The keys that a rank holds, of `rows` rows in the layout of the local keys. */
static HeldSpans find_held(const ContextPass *w, const Layout *local, int64_t rows, int rank)
{
    const SpanMap *slices = w->o->slice_tokens;
    const Shape shape = {.ndim = 1, .n = {rows}};
    Layout tokens = layout_replicate(VIEW_DENSE);
    for (int i = 0; i < local->n_cuts; i++)
        if (local->cut[i].dim == 0) tokens.cut[tokens.n_cuts++] = local->cut[i];
    for (int i = 0; i < tokens.n_cuts && slices; i++)
        if (tokens.cut[i].map) tokens.cut[i].map = slices;
    return holding_of(&tokens, w->o->mesh, &shape, rank).dim[0];
}

/* The tokens of the ranks of the group, from the layout of the local keys. */
static Err find_tokens(ContextPass *w, Value local, Value whole)
{
    const Graph *g = w->g;
    const CompileOptions *o = w->o;
    Dim all = g->value[whole].dims.dim[0];
    int64_t seen = all.cap, seq_len = o->context.seq_len;
    if (o->slice_tokens) {
        all = dim_rows(o->slice_tokens->extent, SLOT_SEEN);
        seen = o->slice_at + o->slice_rows;
        seq_len = 0; /* no plan moves halves */
    }
    TRY(ARENA_NEW(w->temp, w->w.ranks, &w->w.tokens));
    for (int b = 0; b < w->w.ranks; b++) {
        HeldSpans h = find_held(w, &g->value[local].layout, all.cap, w->w.gather->group.rank[b]);
        if (b == w->w.me && o->slice_tokens) w->w.all_rows = dim_held(SLOT_SEEN, &h);
        h.count = held_below(&h, seen);
        TRY(context_rows_find(&h, all, seq_len, w->w.ranks, g->arena, &w->w.tokens[b]));
    }
    return OK;
}

/* This rank's keys of all slices so far: `local`, those of one slice, are put next to earlier
 * ones. */
static Value put_keys(ContextPass *w, Value local)
{
    Graph *g = w->g;
    const Dim rows = w->w.tokens[w->w.me].all.rows;
    Dims dims = g->value[local].dims;
    if (!w->o->slice_tokens) return local;
    if (w->whole[local] == NO_VALUE) {
        dims.dim[0] = w->w.all_rows;
        const Value all = graph_value(g, ROLE_MICRO, "", g->value[local].dtype, dims);
        if (all == NO_VALUE) return NO_VALUE;
        if (g->value[local].name[0]) graph_name(g, all, "%s.all", g->value[local].name);
        Node *n = graph_node(g, OP_put_rows, NULL, 1, &local, &dims, 1);
        if (!n) return NO_VALUE;
        n->out[0] = all;
        w->whole[local] = all;
    }
    return part(g, w->whole[local], 0, 0, rows);
}

/* The key ranges of the whole micro-batch; NO_VALUE if the rank has its own alone. */
static Value find_ranges(const Graph *g, int64_t rows)
{
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_INPUT && g->value[v].index == INPUT_RANGES &&
            g->value[v].dims.dim[0].cap == rows)
            return v;
    return NO_VALUE;
}

static Err open_values(ContextPass *w, Value k, Value v, int steps)
{
    ContextWriter *to = &w->w;
    const QueryValues no_queries = {NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE,
                                    NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE};
    TRY(ARENA_NEW(w->temp, to->ranks, &to->at));
    for (int b = 0; b < to->ranks; b++)
        to->at[b] = (BlockValues){.k = NO_VALUE,
                                  .v = NO_VALUE,
                                  .dk = NO_VALUE,
                                  .dv = NO_VALUE,
                                  .scores = NO_VALUE,
                                  .ds = NO_VALUE,
                                  .piece = {no_queries, no_queries}};
    to->at[to->me].k = k;
    to->at[to->me].v = v;
    to->n_sent = to->n_arrivals = 0;
    TRY(ARENA_NEW(w->temp, 8 * steps + 1, &to->sent));
    return ARENA_NEW(w->temp, 2 * steps + 1, &to->arrival);
}

static Err make_plans(ContextPass *w, bool full)
{
    const ContextChoice *c = &w->o->context;
    /* Keys of earlier slices are seen by all queries, wherever they are. */
    const bool causal = !w->o->slice_tokens && !full;
    const ContextShape shape = {w->w.ranks, c->inner ? c->inner : w->w.ranks, c->tokens, causal};
    const ContextShape *made = &w->plan[0].shape; /* for the attention before */
    if (made->ranks == shape.ranks && made->causal == shape.causal) return OK;
    TRY(context_plan(c->row, &shape, w->temp, &w->plan[0]));
    TRY(context_check(&w->plan[0], w->temp, NULL));
    TRY(context_backward(&w->plan[0], w->temp, &w->plan[1]));
    return context_check(&w->plan[1], w->temp, NULL);
}

static bool moves_queries(const ContextPlan *p)
{
    for (int rank = 0; rank < p->shape.ranks; rank++)
        for (int i = 0; i < p->n[rank]; i++)
            if (p->list[rank][i].kind == CONTEXT_MOVE && p->list[rank][i].payload == PAYLOAD_Q)
                return true;
    return false;
}

/* 2 if some rank visits or moves half of a block's queries. */
static int pieces_of(const ContextPlan *p)
{
    for (int rank = 0; rank < p->shape.ranks; rank++)
        for (int i = 0; i < p->n[rank]; i++) {
            const ContextStep *s = &p->list[rank][i];
            if (s->kind == CONTEXT_VISIT && s->q.halves != HALF_BOTH) return 2;
        }
    return 1;
}

/* Drops the maker of this rank's key ranges, which are made from those of the micro-batch again. */
static void drop_ranges(ContextPass *w, const Node *n)
{
    const int maker = w->maker[n->in[3]];
    if (w->w.all_ranges != NO_VALUE && maker != NO_NODE) w->dropped[maker] = true;
}

/* Finds the local values behind the operands and results of attention, and drops the nodes between.
 * value: k and v; of attention_dx also d.q, d.k and d.v. */
static Err drop_transfers(ContextPass *w, const Node *n, Value value[5])
{
    const TransferPart *other;
    const OldNodes old = old_nodes(w);
    TRY(gathers_drop(&old, n->in[1], &w->w.gather, &value[0]));
    TRY(gathers_drop(&old, n->in[2], &other, &value[1]));
    /* Of a slice, no plan moves queries. */
    w->w.all_ranges =
        w->w.sliced ? NO_VALUE : find_ranges(w->g, w->g->value[n->in[1]].dims.dim[0].cap);
    drop_ranges(w, n);
    value[2] = n->out[0];
    for (int j = 1; j <= 2 && n->op == OP_attention_dx; j++)
        TRY(gathers_drop_scatter(&old, n->out[j], &value[2 + j]));
    return OK;
}

/* A plan in passes keeps its scores for the gradient, which reads the same lse. */
static Err write_forward(ContextPass *w, const Node *n)
{
    TRY(context_write_forward(&w->w, &w->plan[0], n));
    if (!w->plan[0].row->passes) return OK;
    TRY(ARENA_NEW(w->temp, w->w.ranks, &w->scores[n->out[1]]));
    for (int b = 0; b < w->w.ranks; b++) w->scores[n->out[1]][b] = w->w.at[b].scores;
    return OK;
}

static Err write_backward(ContextPass *w, const Node *n, const Value into[3])
{
    const Value *scores = w->scores[n->in[5]];
    if (w->plan[1].row->passes && !scores)
        return err_fail(ERR_CHECK, "graph %s: no attention keeps the scores of %%%d", w->g->kind,
                        n->in[5]);
    for (int b = 0; b < w->w.ranks && scores; b++) w->w.at[b].scores = scores[b];
    return context_write_backward(&w->w, &w->plan[1], n, into);
}

static Err rewrite(ContextPass *w, const Node *n)
{
    Value value[5];
    TRY(drop_transfers(w, n, value));
    w->w.ranks = w->w.gather->group.n;
    for (int i = 0; i < w->w.ranks; i++)
        if (w->w.gather->group.rank[i] == w->o->rank) w->w.me = i;
    w->w.backward = n->op == OP_attention_dx;
    TRY(make_plans(w, n->attr.kernel.attention.full));
    TRY(find_tokens(w, value[0], n->in[1]));
    const ContextPlan *p = &w->plan[w->w.backward];
    const Value k = put_keys(w, value[0]), v = put_keys(w, value[1]);
    TRY(graph_err(w->g));
    TRY(open_values(w, k, v, p->n[w->w.me]));
    w->w.n_pieces = pieces_of(p);
    if (moves_queries(p) && w->w.all_ranges == NO_VALUE)
        return err_fail(ERR_CHECK, "graph %s: %s moves queries, whose key ranges are not here",
                        w->g->kind, p->row->name);
    w->w.number = w->number;
    w->number += CONTEXT_NUMBERS(w->w.ranks);
    return w->w.backward ? write_backward(w, n, &value[2]) : write_forward(w, n);
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
    w->number = graph_transfers(g);
    TRY(graph_makers(g, w->temp, &w->maker));
    TRY(ARENA_NEW(w->temp, w->n_old + 1, &w->dropped));
    TRY(ARENA_NEW(w->temp, g->n_values + 1, &w->scores));
    TRY(ARENA_NEW(w->temp, g->n_values + 1, &w->whole));
    for (Value v = 0; v < g->n_values; v++) w->whole[v] = NO_VALUE;
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
    ContextPass w = {.g = g, .o = o, .w = {.g = g, .sliced = o->slice_tokens != NULL}};
    Arena temp;
    TRY(arena_open(&temp, "context", (size_t)1 << 32));
    w.temp = &temp;
    const Err err = context_in(&w);
    arena_close(&temp);
    TRY(err);
    TRY(graph_order_moves(g));
    return graph_check(g);
}
