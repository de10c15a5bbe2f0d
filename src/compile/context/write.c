/* write.c -- moves and sums as nodes.
 *
 * A move is a send to one rank and a receive from one. Both begin after the visit that the plan
 * lists before them, so the next visit overlaps them, and a rank holds no more blocks than the plan
 * says. Partial results of other ranks are merged with those of this rank (visit.c), or added,
 * after the visit that hides their way here. Sums are in the order of the plan, never in that of
 * arrival. */
#include "compile/context/write.h"

#include <string.h>
#include "ir/build.h"

enum { MAX_VALUES = 4 }; /* of a payload */

/* The values of a payload of a block, in the order in which they are sent. Returns their number. */
static int payload_values(const ContextWriter *w, BlockValues *b, ContextPayload payload, int piece,
                          Value *list[MAX_VALUES])
{
    QueryValues *q = &b->piece[piece];
    int n = 0;
    switch (payload) {
    case PAYLOAD_KV:
        list[n++] = &b->k, list[n++] = &b->v;
        break;
    case PAYLOAD_DKV:
        list[n++] = &b->dk, list[n++] = &b->dv;
        break;
    case PAYLOAD_K:
        list[n++] = &b->k;
        break;
    case PAYLOAD_V:
        list[n++] = &b->v;
        break;
    case PAYLOAD_DK:
        list[n++] = &b->dk;
        break;
    case PAYLOAD_DV:
        list[n++] = &b->dv;
        break;
    case PAYLOAD_Q:
        list[n++] = &q->q;
        if (w->backward) list[n++] = &q->dout, list[n++] = &q->lse, list[n++] = &q->delta;
        break;
    case PAYLOAD_O:
        list[n++] = &q->o, list[n++] = &q->o_lse;
        break;
    default:
        list[n++] = &q->dq;
    }
    return n;
}

/* A message: value `which` of a payload of a piece. Its number is the same on both ranks. */
typedef struct {
    ContextPayload payload;
    int block, piece, which;
    int peer; /* in the group */
} PlanMessage;

static int32_t message_move(ContextWriter *w, const PlanMessage *m)
{
    const int number =
        ((m->block * N_PAYLOADS + (int)m->payload) * MAX_PIECES + m->piece) * MAX_VALUES + m->which;
    const TransferPart move = {.number = w->number + number,
                               .peer = w->gather->group.rank[m->peer],
                               .axes = w->gather->axes,
                               .group = w->gather->group};
    return graph_move(w->g, &move);
}

static void send_message(ContextWriter *w, const PlanMessage *m, Value x)
{
    Graph *g = w->g;
    const OpAttr attr = {.move = {message_move(w, m)}};
    const Dims none = dims1(dim_of(0));
    if (g->err != OK) return;
    Node *n = graph_node(g, OP_send, &attr, 2, (const Value[]){x, w->last}, &none, 1);
    if (!n) return;
    n->queue = QUEUE_COMM;
    w->sent[w->n_sent++] = n->out[0];
}

/* Returns a value that is received, with the shape of this rank's one and the rows of the block. */
static Value receive_message(ContextWriter *w, const PlanMessage *m, Value like)
{
    Graph *g = w->g;
    const OpAttr attr = {.move = {message_move(w, m)}};
    const ContextTokens *t = &w->tokens[m->block];
    const bool keys = payload_is_keys(m->payload);
    if (g->err != OK) return NO_VALUE;
    Dims dims = g->value[like].dims;
    const DType dtype =
        payload_is_partial(m->payload) ? dtype_wide(g->dtype) : g->value[like].dtype;
    dims.dim[0] = keys || w->n_pieces == 1 ? t->all.rows : t->piece[m->piece].rows;
    Node *n = graph_node(g, OP_recv, &attr, 1, &w->last, &dims, 1);
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    g->value[n->out[0]].dtype = dtype;
    return n->out[0];
}

/* Own values have the shapes of all blocks: o and dq have that of q, dk and dv of k and v. */
static Value like_of(const ContextWriter *w, ContextPayload payload, int which)
{
    const BlockValues *me = &w->at[w->me];
    const QueryValues *q = &me->piece[0];
    const Value keys[] = {me->k, me->v}, queries[] = {q->q, q->dout, q->lse, q->delta};
    const Value partial[] = {q->q, q->lse};
    if (payload == PAYLOAD_V || payload == PAYLOAD_DV) return me->v;
    if (payload_is_keys(payload)) return keys[which];
    return payload == PAYLOAD_Q ? queries[which] : partial[which];
}

static void merge_into(ContextWriter *w, QueryValues *q, Value o, Value lse)
{
    if (q->o != NO_VALUE) {
        const Value in[] = {q->o, q->o_lse, o, lse};
        const Node *n = graph_node(w->g, OP_attention_merge, NULL, 4, in, NULL, 2);
        if (!n) return;
        o = n->out[0];
        lse = n->out[1];
    }
    q->o = o;
    q->o_lse = lse;
}

/* Adds the partial results that have arrived. */
static void add_arrivals(ContextWriter *w)
{
    for (int i = 0; i < w->n_arrivals && w->g->err == OK; i++) {
        const Arrival *a = &w->arrival[i];
        BlockValues *b = &w->at[a->block];
        QueryValues *q = &b->piece[a->piece];
        if (a->payload == PAYLOAD_O) merge_into(w, q, a->value[0], a->value[1]);
        if (a->payload == PAYLOAD_DQ) q->dq = context_sum_of(w->g, q->dq, a->value[0]);
        if (a->payload == PAYLOAD_DKV || a->payload == PAYLOAD_DK)
            b->dk = context_sum_of(w->g, b->dk, a->value[0]);
        if (a->payload == PAYLOAD_DKV || a->payload == PAYLOAD_DV)
            b->dv = context_sum_of(w->g, b->dv, a->value[a->payload == PAYLOAD_DKV]);
    }
    w->n_arrivals = 0;
}

/* True if the step moves this piece of the block; keys move as a whole. */
static bool has_piece(const ContextWriter *w, ContextPayload payload, ContextBlock b, int piece)
{
    if (payload_is_keys(payload) || w->n_pieces == 1) return piece == 0;
    return b.halves >> piece & 1;
}

static void send_block(ContextWriter *w, const ContextStep *s, int piece)
{
    const ContextPayload payload = (ContextPayload)s->payload;
    Value *list[MAX_VALUES];
    const int n = payload_values(w, &w->at[s->out.rank], payload, piece, list);
    for (int i = 0; i < n; i++) {
        send_message(w, &(PlanMessage){payload, s->out.rank, piece, i, s->to}, *list[i]);
        if (payload_is_partial(payload)) *list[i] = NO_VALUE; /* it is elsewhere now */
    }
}

static void receive_block(ContextWriter *w, const ContextStep *s, int piece)
{
    const ContextPayload payload = (ContextPayload)s->payload;
    Value *list[MAX_VALUES], got[MAX_VALUES];
    const int n = payload_values(w, &w->at[s->in.rank], payload, piece, list);
    for (int i = 0; i < n; i++)
        got[i] = receive_message(w, &(PlanMessage){payload, s->in.rank, piece, i, s->from},
                                 like_of(w, payload, i));
    for (int i = 0; i < n && w->g->err == OK; i++) got[i] = wait_for(w->g, got[i]);
    if (payload_is_partial(payload))
        w->arrival[w->n_arrivals++] =
            (Arrival){payload, s->in.rank, piece, {got[0], n > 1 ? got[1] : NO_VALUE}};
    else
        for (int i = 0; i < n; i++) *list[i] = got[i];
}

static void add_move(ContextWriter *w, const ContextStep *s)
{
    const ContextPayload payload = (ContextPayload)s->payload;
    if (payload_is_partial(payload) && s->to >= 0) add_arrivals(w);
    for (int piece = 0; piece < w->n_pieces && s->to >= 0; piece++)
        if (has_piece(w, payload, s->out, piece)) send_block(w, s, piece);
    for (int piece = 0; piece < w->n_pieces && s->from >= 0; piece++)
        if (has_piece(w, payload, s->in, piece)) receive_block(w, s, piece);
}

static void add_visit(ContextWriter *w, const Node *whole, const ContextStep *s)
{
    for (int piece = 0; piece < w->n_pieces; piece++)
        if (has_piece(w, PAYLOAD_Q, s->q, piece)) context_write_visit(w, whole, s, piece);
    add_arrivals(w);
}

/* Makes `into`, a value of the old graph, instead of v, which the newest node makes. */
static void rename_value(Graph *g, Value v, Value into)
{
    for (int i = g->n_nodes - 1; i >= 0 && g->err == OK; i--)
        for (int j = 0; j < g->node[i].n_out; j++)
            if (g->node[i].out[j] == v) {
                g->node[i].out[j] = into;
                return;
            }
}

/* v, and these sends of this rank are done: peers need them as much as this rank needs v. */
static Value after_sends(ContextWriter *w, Value v, int from, int to)
{
    Graph *g = w->g;
    const int n_sent = to - from;
    Value *in;
    if (g->err != OK || n_sent == 0) return v;
    g->err = ARENA_NEW(g->arena, n_sent + 1, &in);
    if (g->err != OK) return NO_VALUE;
    in[0] = v;
    memcpy(in + 1, w->sent + from, (size_t)n_sent * sizeof *in);
    const DType dtype = g->value[v].dtype;
    const Dims dims = g->value[v].dims;
    const Node *n = graph_node(g, OP_after, NULL, n_sent + 1, in, &dims, 1);
    if (!n) return NO_VALUE;
    g->value[n->out[0]].dtype = dtype;
    return n->out[0];
}

/* The pieces of a result, one after the other. */
static Value join_pieces(ContextWriter *w, const Value piece[MAX_PIECES])
{
    Graph *g = w->g;
    const ContextTokens *me = &w->tokens[w->me];
    if (g->err != OK || w->n_pieces == 1) return piece[0];
    Dims dims = g->value[piece[0]].dims;
    dims.dim[0] = context_rows_ascend(me) ? me->all.rows : dim_of(me->all.count);
    const DType dtype = g->value[piece[0]].dtype;
    const Value y = join(g, MAX_PIECES, piece, 0, dims);
    if (g->err == OK) g->value[y].dtype = dtype;
    return y;
}

/* Makes `into` from the pieces of a partial result: whole, in the order of the block, in its
 * type. */
static void finish(ContextWriter *w, const Value piece[MAX_PIECES], Value into, bool sends)
{
    Graph *g = w->g;
    Value v = join_pieces(w, piece);
    if (sends) v = after_sends(w, v, 0, w->n_sent);
    if (g->err == OK && g->value[v].dtype != g->value[into].dtype)
        v = cast(g, v, g->value[into].dtype);
    if (w->n_pieces > 1 && !context_rows_ascend(&w->tokens[w->me]))
        v = context_rows_merge(g, v, &w->tokens[w->me]);
    rename_value(g, v, into);
}

/* Adds a gradient of keys to the sum over slices, and makes `into` from the rows of this one. */
static void finish_slice(ContextWriter *w, Value sum, Value into)
{
    Graph *g = w->g;
    if (g->err != OK) return;
    Dims dims = g->value[sum].dims;
    const Dims rows = g->value[into].dims;
    dims.dim[0] = w->all_rows;
    const Value all = graph_value(g, ROLE_MICRO, "", dtype_wide(g->dtype), dims);
    if (all == NO_VALUE) return;
    if (g->value[into].name[0]) graph_name(g, all, "%s.all", g->value[into].name);
    Node *n = graph_node(g, OP_add_rows, NULL, 1, &sum, &dims, 1);
    if (!n) return;
    n->out[0] = all;
    n->keep[0] = SLOT_BEFORE_LAST;
    n = graph_node(g, OP_get_rows, NULL, 1, &all, &rows, 1);
    if (n) n->out[0] = into;
}

/* Makes the gradient of this rank's keys or values from the sum of its parts. */
static void finish_keys(ContextWriter *w, Value sum, Value into)
{
    const Value piece[MAX_PIECES] = {sum, NO_VALUE};
    if (w->sliced)
        finish_slice(w, sum, into);
    else
        finish(w, piece, into, false);
}

static void wait_for_sends(ContextWriter *w)
{
    for (int i = 0; i < w->n_sent && w->g->err == OK; i++) w->sent[i] = wait_for(w->g, w->sent[i]);
}

static void write_steps(ContextWriter *w, const ContextPlan *p, const Node *whole)
{
    for (int i = 0; i < p->n[w->me] && w->g->err == OK; i++) {
        const ContextStep *s = &p->list[w->me][i];
        if (s->kind == CONTEXT_MOVE)
            add_move(w, s);
        else
            add_visit(w, whole, s);
    }
    add_arrivals(w);
    wait_for_sends(w);
}

/* The piece of a value of this rank. */
static Value own_piece(ContextWriter *w, Value x, int piece)
{
    const ContextRows *rows = &w->tokens[w->me].piece[piece];
    if (w->n_pieces == 1) return x;
    const Value y = context_rows_take(w->g, x, rows, rows->of_block);
    if (w->g->err == OK) w->g->node[w->g->n_nodes - 1].recomputed = w->backward; /* not kept */
    return y;
}

static void open_queries(ContextWriter *w, const Node *whole)
{
    w->last = w->backward ? whole->in[4] : whole->in[0];
    for (int piece = 0; piece < w->n_pieces; piece++) {
        QueryValues *q = &w->at[w->me].piece[piece];
        q->q = own_piece(w, whole->in[0], piece);
        if (w->all_ranges == NO_VALUE) q->ranges = whole->in[3];
    }
}

/* What backward reads of a plan in passes. Scores may be made again although o and lse are kept:
 * keys then travel again to all ranks, so the sends of keys are tied to scores, those of values to
 * o. lse is a copy, since the one that the last scores make is kept with these scores. */
static void finish_passes(ContextWriter *w, const ContextPlan *p, const Node *whole)
{
    Graph *g = w->g;
    const QueryValues *q = &w->at[w->me].piece[0];
    int keys = 0, last = w->me;
    for (int i = 0; i < p->n[w->me]; i++) {
        const ContextStep *s = &p->list[w->me][i];
        keys += s->kind == CONTEXT_MOVE && s->payload == PAYLOAD_K && s->to >= 0;
        if (s->kind == CONTEXT_VISIT && s->pass == PASS_SCORES) last = s->k.rank;
    }
    w->at[last].scores = after_sends(w, w->at[last].scores, 0, keys);
    Value o = after_sends(w, q->o, keys, w->n_sent);
    if (g->err == OK && g->value[o].dtype != g->value[whole->out[0]].dtype)
        o = cast(g, o, g->value[whole->out[0]].dtype);
    rename_value(g, o, whole->out[0]);
    rename_value(g, cast(g, q->o_lse, dtype_wide(g->dtype)), whole->out[1]);
}

Err context_write_forward(ContextWriter *w, const ContextPlan *p, const Node *whole)
{
    Value o[MAX_PIECES], lse[MAX_PIECES];
    open_queries(w, whole);
    w->at[w->me].piece[0].lse = whole->out[1]; /* for its shape alone */
    write_steps(w, p, whole);
    if (p->row->passes) {
        finish_passes(w, p, whole);
        return graph_err(w->g);
    }
    for (int i = 0; i < MAX_PIECES; i++) {
        o[i] = w->at[w->me].piece[i].o;
        lse[i] = w->at[w->me].piece[i].o_lse;
    }
    finish(w, lse, whole->out[1], true);
    finish(w, o, whole->out[0], true);
    return graph_err(w->g);
}

Err context_write_backward(ContextWriter *w, const ContextPlan *p, const Node *whole,
                           const Value into[3])
{
    Graph *g = w->g;
    BlockValues *me = &w->at[w->me];
    Value dq[MAX_PIECES];
    const Value in[] = {whole->in[4], whole->in[6]};
    const Node *n = graph_node(g, OP_attention_delta, NULL, 2, in, NULL, 1);
    const Value delta = n ? n->out[0] : NO_VALUE;
    TRY(graph_err(g));
    open_queries(w, whole);
    for (int piece = 0; piece < w->n_pieces; piece++) {
        QueryValues *q = &me->piece[piece];
        q->dout = own_piece(w, whole->in[4], piece);
        q->lse = own_piece(w, whole->in[5], piece);
        q->delta = own_piece(w, delta, piece);
    }
    write_steps(w, p, whole);
    for (int i = 0; i < MAX_PIECES; i++) dq[i] = me->piece[i].dq;
    finish(w, dq, into[0], true);
    w->n_pieces = 1; /* keys are whole */
    finish_keys(w, me->dk, into[1]);
    finish_keys(w, me->dv, into[2]);
    return graph_err(g);
}
