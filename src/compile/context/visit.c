/* visit.c -- visits as nodes.
 *
 * A visit carries on what those before it have left on this rank, in place: (o, lse) forward, dq,
 * dk and dv backward.
 *
 * In passes the node of a visit depends on the pass. What is kept of a rank's queries with a block
 * of keys is a value of the block:
 *
 *     forward    scores, lse = attention_scores q k           o += attention_weigh scores v
 *     backward   ds, dv = attention_weigh_dx scores v do      dq, dk = attention_scores_dx ds k */
#include "compile/context/write.h"
#include "ir/build.h"

Value context_sum_of(Graph *g, Value a, Value b)
{
    return a == NO_VALUE ? b : b == NO_VALUE ? a : add(g, a, b);
}

/* The key ranges of the queries in rows of the micro-batch, then in those of a block of keys. They
 * are not kept for backward, but made again. */
static Value add_ranges(ContextWriter *w, const ContextStep *s, int piece)
{
    Graph *g = w->g;
    QueryValues *q = &w->at[s->q.rank].piece[piece];
    const ContextTokens *queries = &w->tokens[s->q.rank], *keys = &w->tokens[s->k.rank];
    if (q->ranges == NO_VALUE) {
        const ContextRows *rows = w->n_pieces > 1 ? &queries->piece[piece] : &queries->all;
        q->ranges = context_rows_take(g, w->all_ranges, rows, rows->of_micro);
        if (g->err == OK) g->node[g->n_nodes - 1].recomputed = w->backward;
    }
    if (!keys->span || g->err != OK) return q->ranges;
    const OpAttr attr = {.kernel.rows = {keys->span, keys->all.n_spans}};
    Node *n = graph_node(g, OP_local_ranges, &attr, 1, &q->ranges, NULL, 1);
    if (!n) return NO_VALUE;
    n->recomputed = w->backward;
    return n->out[0];
}

/* A visit with the sums that it carries on: its op and operands, a bit per output that has one. */
typedef struct {
    OpId op;
    int n_in;
    unsigned kept;
} VisitSums;

static VisitSums add_sums(const ContextWriter *w, const QueryValues *q, const BlockValues *k,
                          Value *in)
{
    VisitSums v = {w->backward ? OP_attention_part_dx : OP_attention, w->backward ? 7 : 4, 0};
    if (!w->backward) {
        if (q->o == NO_VALUE) return v;
        in[v.n_in++] = q->o, in[v.n_in++] = q->o_lse;
        v.kept = 3;
        return v;
    }
    if (k->dk != NO_VALUE) {
        v.op = OP_attention_part_dx_onto;
        in[v.n_in++] = k->dk, in[v.n_in++] = k->dv;
        v.kept = 6;
    }
    if (q->dq != NO_VALUE) {
        in[v.n_in++] = q->dq;
        v.kept |= 1;
    }
    return v;
}

/* A node with wide outputs, for the keys of the visit. */
static const Node *add_node(ContextWriter *w, const Node *whole, const ContextStep *s,
                            const VisitSums *sums, const Value *in, int n_out)
{
    Graph *g = w->g;
    const ContextTokens *keys = &w->tokens[s->k.rank];
    OpAttr attr = whole->attr;
    attr.kernel.attention.key_at = keys->span || !keys->all.n_spans ? 0 : keys->all.of_micro[0].lo;
    if (g->err != OK) return NULL;
    Node *n = graph_node(g, sums->op, &attr, sums->n_in, in, NULL, n_out);
    for (int j = 0; n && j < n->n_out; j++) {
        g->value[n->out[j]].dtype = dtype_wide(g->dtype);
        if (sums->kept >> j & 1) n->keep[j] = SLOT_ONE;
    }
    return n;
}

/* One attention of a piece of queries with a block of keys. */
static void add_attention(ContextWriter *w, const Node *whole, const ContextStep *s, int piece)
{
    QueryValues *q = &w->at[s->q.rank].piece[piece];
    BlockValues *k = &w->at[s->k.rank];
    const Value ranges = add_ranges(w, s, piece);
    Value in[MAX_IN] = {q->q, k->k, k->v, ranges, q->dout, q->lse, q->delta};
    const VisitSums sums = add_sums(w, q, k, in);
    const Node *n = add_node(w, whole, s, &sums, in, whole->n_out);
    if (!n) return;
    w->last = n->out[0];
    if (w->backward)
        q->dq = n->out[0], k->dk = n->out[1], k->dv = n->out[2];
    else
        q->o = n->out[0], q->o_lse = n->out[1];
}

/* The first pass: scores, and the lse of the row so far. */
static void add_scores(ContextWriter *w, const Node *whole, const ContextStep *s)
{
    QueryValues *q = &w->at[s->q.rank].piece[0];
    BlockValues *k = &w->at[s->k.rank];
    const bool carries = q->o_lse != NO_VALUE;
    const VisitSums sums = {OP_attention_scores, carries ? 4 : 3, carries ? 2 : 0};
    const Value in[] = {q->q, k->k, add_ranges(w, s, 0), q->o_lse};
    const Node *n = add_node(w, whole, s, &sums, in, 2);
    if (n) k->scores = w->last = n->out[0], q->o_lse = n->out[1];
}

/* The second pass: the sum of the values by their weights. */
static void add_weighed(ContextWriter *w, const Node *whole, const ContextStep *s)
{
    QueryValues *q = &w->at[s->q.rank].piece[0];
    const BlockValues *k = &w->at[s->k.rank];
    const bool carries = q->o != NO_VALUE;
    const VisitSums sums = {OP_attention_weigh, carries ? 4 : 3, carries ? 1 : 0};
    const Value in[] = {k->scores, q->o_lse, k->v, q->o};
    const Node *n = add_node(w, whole, s, &sums, in, 1);
    if (n) q->o = w->last = n->out[0];
}

static void add_weighed_dx(ContextWriter *w, const Node *whole, const ContextStep *s)
{
    const QueryValues *q = &w->at[s->q.rank].piece[0];
    BlockValues *k = &w->at[s->k.rank];
    const VisitSums sums = {OP_attention_weigh_dx, 5, 0};
    const Value in[] = {k->scores, q->lse, k->v, q->dout, q->delta};
    const Node *n = add_node(w, whole, s, &sums, in, 2);
    if (!n) return;
    k->ds = w->last = n->out[0];
    k->dv = context_sum_of(w->g, k->dv, n->out[1]);
}

static void add_scores_dx(ContextWriter *w, const Node *whole, const ContextStep *s)
{
    QueryValues *q = &w->at[s->q.rank].piece[0];
    BlockValues *k = &w->at[s->k.rank];
    const bool carries = q->dq != NO_VALUE;
    const VisitSums sums = {OP_attention_scores_dx, carries ? 4 : 3, carries ? 1 : 0};
    const Value in[] = {k->ds, q->q, k->k, q->dq};
    const Node *n = add_node(w, whole, s, &sums, in, 2);
    if (!n) return;
    q->dq = w->last = n->out[0];
    k->dk = context_sum_of(w->g, k->dk, n->out[1]);
}

void context_write_visit(ContextWriter *w, const Node *whole, const ContextStep *s, int piece)
{
    if (s->pass == PASS_SCORES)
        (w->backward ? add_scores_dx : add_scores)(w, whole, s);
    else if (s->pass == PASS_VALUES)
        (w->backward ? add_weighed_dx : add_weighed)(w, whole, s);
    else
        add_attention(w, whole, s, piece);
}
