/* weights.c -- GEMMs whose weight is sharded over cp, as tokens are: shards travel along a ring.
 *
 *   before:  y = linear x w                         x: tokens of this rank; w: all rows, as place
 *            d.x = linear_dx d.y w                  sees it
 *            d.w += linear_dw d.y x                 partial over cp
 *   after:   send w; w1 = wait (recv after x)       2 ranks; w: the rows of this rank
 *            y0 = linear_part x w
 *            y1 = linear_part x w1
 *            y = join y0 y1                         column blocks, in the order of the rows of w
 *            d.x0 = linear_part_dx d.y0 w           shards travel again; d.x is a sum over them
 *            d.w += linear_dw d.y0 x                complete over cp, with what arrives below
 *            d.x1 = linear_part_dx d.y1 w1 d.x0
 *            g1 = linear_part_dw d.y1 x             for the owner of w1
 *            send g1; d.w += wait (recv after g1)
 *
 * Rank r begins with its own shard and visits those of ranks r-1, r-2, ...; while it multiplies
 * one, it sends that to rank r+1 and receives the next. So besides its own a rank has two
 * shards. The gradient of a shard starts at the rank after the owner, follows the shard one hop
 * behind, is added to by each rank, and ends at the owner: every sum has one order. Forward,
 * each element of y is one dot product as on one rank. The first hop of a weight overlaps the
 * last visit of the weight before. d.x is added up in the wide type, and so is the gradient,
 * which travels in it. Weights that read one x (q, k and v) add to one sum d.x. */
#include "compile/compile.h"

#include <string.h>
#include "ir/build.h"
#include "layout/holding.h"

/* A weight and its shards. */
typedef struct {
    Value w;               /* after the pass: the rows of this rank */
    int64_t *first, *rows; /* [ranks]: of each shard */
    int64_t width;
} StreamedWeight;

typedef struct {
    Graph *g;
    const CompileOptions *o;
    Arena *temp;
    unsigned axes; /* of cp */
    RankList group;
    int ranks, me;  /* this rank's place in the group */
    int32_t number; /* of the next transfer */
    Node *old;      /* the old nodes */
    int n_old;
    bool *written;          /* [n_old] */
    StreamedWeight *weight; /* [n_params]; first == NULL: not streamed */
    Value *sent;            /* sends of the ring at hand */
    int n_sent;
    /* A sum over shards that a later weight's shards are added to: d.x of k after that of v. */
    Value held;
    /* The last visit of the weight before the last one, forward: backward reads what it makes. */
    Value early_y;
    Value last_y, last_dx; /* of the last visit, forward and backward; NO_VALUE: none yet */
    Value arriving, into;  /* a gradient that is still to be added to the owner's sum */
} WeightsPass;

static int ring_place(const WeightsPass *p, int place) { return (place + p->ranks) % p->ranks; }

/* ---- moves ---- */

static Value send_on(WeightsPass *p, Value x, Value after, int32_t number)
{
    Graph *g = p->g;
    const TransferPart move = {.number = number,
                               .peer = p->group.rank[ring_place(p, p->me + 1)],
                               .weights = true,
                               .axes = p->axes,
                               .group = p->group};
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    const Dims none = dims1(dim_of(0));
    const Value in[] = {x, after};
    Node *n = g->err == OK ? graph_node(g, OP_send, &attr, after == NO_VALUE ? 1 : 2, in, &none, 1)
                           : NULL;
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    return n->out[0];
}

static Value receive(WeightsPass *p, Value after, int32_t number, Dims dims, DType dtype)
{
    Graph *g = p->g;
    const TransferPart move = {.number = number,
                               .peer = p->group.rank[ring_place(p, p->me - 1)],
                               .weights = true,
                               .axes = p->axes,
                               .group = p->group};
    const OpAttr attr = {.move = {graph_move(g, &move)}};
    Node *n = g->err == OK ? graph_node(g, OP_recv, &attr, 1, &after, &dims, 1) : NULL;
    if (!n) return NO_VALUE;
    n->queue = QUEUE_COMM;
    g->value[n->out[0]].dtype = dtype;
    return n->out[0];
}

static Dims shard_dims(const StreamedWeight *w, int owner)
{
    return dims2(dim_of(w->rows[owner]), dim_of(w->width));
}

/* Passes a shard on, and begins to receive the next one, which is returned. */
static Value hop(WeightsPass *p, const StreamedWeight *w, int owner, Value shard, Value after)
{
    const int next = ring_place(p, owner - 1);
    p->sent[p->n_sent++] = send_on(p, shard, after, p->number + owner);
    return receive(p, after, p->number + next, shard_dims(w, next), p->g->dtype);
}

/* v, and the sends of the ring are done: the next rank needs them as much as this one needs v. */
static Value after_sends(WeightsPass *p, Value v)
{
    Graph *g = p->g;
    Value *in;
    for (int i = 0; i < p->n_sent; i++) p->sent[i] = wait_for(g, p->sent[i]);
    if (g->err == OK) g->err = ARENA_NEW(g->arena, p->n_sent + 1, &in);
    if (g->err != OK) return NO_VALUE;
    in[0] = v;
    memcpy(in + 1, p->sent, (size_t)p->n_sent * sizeof *in);
    const Dims dims = g->value[v].dims;
    const Node *n = graph_node(g, OP_after, NULL, p->n_sent + 1, in, &dims, 1);
    return n ? n->out[0] : NO_VALUE;
}

/* Makes `into`, a value of the old graph, instead of v, which the newest node makes. */
static void rename_newest(Graph *g, Value into)
{
    if (g->err == OK) g->node[g->n_nodes - 1].out[0] = into;
}

/* ---- one GEMM ---- */

static Value columns(WeightsPass *p, Value x, const StreamedWeight *w, int owner)
{
    return part(p->g, x, 1, w->first[owner], dim_of(w->rows[owner]));
}

/* x, after the visit before, if there is one: visits are in the order of the ring wherever they
 * run, as recomputed ones do. */
static Value after_visit(WeightsPass *p, Value x, Value visit)
{
    Graph *g = p->g;
    const Value in[] = {x, visit};
    if (g->err != OK || visit == NO_VALUE) return x;
    const Dims dims = g->value[x].dims;
    const Node *n = graph_node(g, OP_after, NULL, 2, in, &dims, 1);
    return n ? n->out[0] : NO_VALUE;
}

static Value visit_y(WeightsPass *p, const Node *whole, Value x, Value shard, Value bias)
{
    const Value in[] = {x, shard, bias};
    const Node *n = p->g->err == OK ? graph_node(p->g, OP_linear_part, &whole->attr,
                                                 bias == NO_VALUE ? 2 : 3, in, NULL, 1)
                                    : NULL;
    return n ? n->out[0] : NO_VALUE;
}

static Err write_forward(WeightsPass *p, const Node *n)
{
    Graph *g = p->g;
    const StreamedWeight *w = &p->weight[g->value[n->in[1]].index];
    const Dims dims = g->value[n->out[0]].dims;
    Value shard = w->w, after = p->last_y == NO_VALUE ? n->in[0] : p->last_y, *block;
    TRY(ARENA_NEW(g->arena, p->ranks, &block));
    for (int visit = 0; visit < p->ranks; visit++) {
        const int owner = ring_place(p, p->me - visit);
        const bool last = visit == p->ranks - 1;
        const Value next = last ? NO_VALUE : hop(p, w, owner, shard, after);
        const Value bias =
            n->n_in < 3 ? NO_VALUE : part(g, n->in[2], 0, w->first[owner], dim_of(w->rows[owner]));
        const Value x = after_visit(p, n->in[0], visit ? after : NO_VALUE);
        block[owner] = after = visit_y(p, n, x, shard, bias);
        if (!last) shard = wait_for(g, next);
        TRY(graph_err(g));
    }
    p->early_y = p->last_y;
    p->last_y = after;
    p->number += p->ranks;
    after_sends(p, join(g, p->ranks, block, 1, dims));
    rename_newest(g, n->out[0]);
    p->n_sent = 0;
    return graph_err(g);
}

/* Adds the gradient that arrived to the owner's sum. */
static Err add_arrived(WeightsPass *p)
{
    Graph *g = p->g;
    if (p->arriving == NO_VALUE) return OK;
    const Dims dims = g->value[p->into].dims;
    BoxCopy *all;
    TRY(ARENA_NEW(g->arena, 1, &all));
    *all = (BoxCopy){
        .ndim = 1, .n = {dims_count(&dims)}, .from_stride = {1}, .to_stride = {1}, .add = true};
    const OpAttr attr = {.move = {graph_move(g, &(TransferPart){.copy = all, .n_copies = 1})}};
    const Value arrived = wait_for(g, p->arriving);
    TRY(graph_err(g));
    Node *n = graph_node(g, OP_pack, &attr, 1, &arrived, &dims, 1);
    if (!n) return graph_err(g);
    n->out[0] = p->into;
    n->keep[0] = SLOT_ONE;
    p->arriving = NO_VALUE;
    return OK;
}

/* d.y[t, rows of the shard] shard, added to the shards before. */
static Value visit_dx(WeightsPass *p, Value dy, Value shard, Value sum)
{
    const OpAttr attr = {.kernel.gemm = {0}};
    const Value in[] = {dy, shard, sum};
    Node *n = graph_node(p->g, OP_linear_part_dx, &attr, sum == NO_VALUE ? 2 : 3, in, NULL, 1);
    if (!n) return NO_VALUE;
    if (sum != NO_VALUE) n->keep[0] = SLOT_ONE;
    return n->out[0];
}

/* This rank's part of the gradient of a shard: into the sum if it is the owner, else added to what
 * the ranks before have, and passed on. */
static Err visit_dw(WeightsPass *p, const Node *dw, const StreamedWeight *w, int owner, Value dy)
{
    Graph *g = p->g;
    const OpAttr attr = {.kernel.gemm = {.ta = true}};
    const Dims dims = shard_dims(w, owner);
    const bool own = owner == p->me;
    Value in[] = {dy, dw->in[1], NO_VALUE};
    if (!own && p->arriving != NO_VALUE) in[2] = wait_for(g, p->arriving);
    TRY(graph_err(g));
    Node *n = graph_node(g, own ? OP_linear_dw : OP_linear_part_dw, &attr,
                         in[2] == NO_VALUE ? 2 : 3, in, &dims, 1);
    if (!n) return graph_err(g);
    if (in[2] != NO_VALUE) n->keep[0] = SLOT_ONE;
    if (own) {
        n->out[0] = dw->out[0];
        n->keep[0] = dw->keep[0];
        return OK;
    }
    const int next = ring_place(p, owner - 1);
    const Value sum = n->out[0];
    const Value sent = send_on(p, sum, NO_VALUE, p->number + p->ranks + owner);
    p->arriving =
        receive(p, sum, p->number + p->ranks + next, shard_dims(w, next), dtype_wide(g->dtype));
    wait_for(g, sent);
    return graph_err(g);
}

static void finish_dx(WeightsPass *p, Value dx, Value into)
{
    Graph *g = p->g;
    dx = after_sends(p, dx);
    if (g->err != OK) return;
    if (g->value[dx].dtype != g->value[into].dtype || g->value[into].role != ROLE_LOCAL)
        cast(g, dx, g->value[into].dtype);
    rename_newest(g, into);
}

static bool is_streamed(const WeightsPass *p, Value v)
{
    const ValueInfo *a = &p->g->value[v];
    return (a->role == ROLE_PARAM || a->role == ROLE_DPARAM) && p->weight[a->index].first;
}

static int readers_of(const WeightsPass *p, Value v, int *reader)
{
    int n = 0;
    for (int i = 0; i < p->n_old; i++)
        for (int j = 0; j < p->old[i].n_in; j++)
            if (p->old[i].in[j] == v) *reader = i, n++;
    return n;
}

/* The add that sums v and the d.x of the next streamed weight, or NO_NODE. */
static int next_sum(const WeightsPass *p, int index, Value v)
{
    int sum = NO_NODE, other = NO_NODE, next = index + 1;
    if (p->g->value[v].role != ROLE_LOCAL || readers_of(p, v, &sum) != 1) return NO_NODE;
    const Node *n = &p->old[sum];
    if (n->op != OP_add) return NO_NODE;
    while (next < p->n_old &&
           !(p->old[next].op == OP_linear_dx && is_streamed(p, p->old[next].in[1])))
        next++;
    if (next == p->n_old) return NO_NODE;
    const Value dx = p->old[next].out[0];
    return dx == n->in[n->in[0] == v] && readers_of(p, dx, &other) == 1 ? sum : NO_NODE;
}

/* Ends the sum over the shards of a weight, or holds it for those of the next one. */
static Err end_dx(WeightsPass *p, int index, Value sum)
{
    Value into = p->old[index].out[0];
    int add = NO_NODE;
    if (p->held != NO_VALUE) { /* what was held is in the sum */
        readers_of(p, into, &add);
        into = p->old[add].out[0];
    }
    p->held = NO_VALUE;
    add = next_sum(p, index, into);
    if (add == NO_NODE) {
        finish_dx(p, sum, into);
        p->n_sent = 0;
    } else {
        p->held = sum;
        p->written[add] = true;
    }
    return graph_err(p->g);
}

/* dx or dw may be NULL. */
static Err write_backward(WeightsPass *p, const Node *dx, const Node *dw)
{
    Graph *g = p->g;
    const int param = g->value[dx ? dx->in[1] : dw->out[0]].index;
    const StreamedWeight *w = &p->weight[param];
    const Value none = NO_VALUE, dy = dx ? dx->in[0] : none;
    Value shard = w->w, sum = dx ? p->held : none, next = none;
    /* Forward visits that are recomputed come first: else their shards would wait here. */
    Value after = p->last_dx != none ? p->last_dx : dx ? after_visit(p, dy, p->early_y) : none;
    for (int visit = 0; visit < p->ranks; visit++) {
        const int owner = ring_place(p, p->me - visit);
        if (dx && visit < p->ranks - 1) next = hop(p, w, owner, shard, after);
        if (dx) after = sum = visit_dx(p, columns(p, dy, w, owner), shard, sum);
        TRY(graph_err(g));
        if (dw) TRY(visit_dw(p, dw, w, owner, columns(p, dw->in[0], w, owner)));
        if (visit == 0) TRY(add_arrived(p)); /* of the weight before */
        if (dx && visit < p->ranks - 1) shard = wait_for(g, next);
    }
    if (dx) p->last_dx = sum;
    if (dw) p->into = dw->out[0];
    p->number += 2 * p->ranks;
    return dx ? end_dx(p, (int)(dx - p->old), sum) : graph_err(g);
}

/* ---- the pass ---- */

static Err find_shards(WeightsPass *p, Value v)
{
    Graph *g = p->g;
    const Dims *d = &g->value[v].dims;
    const int param = g->value[v].index;
    StreamedWeight *w = &p->weight[param];
    const Shape whole = {2, {d->dim[0].cap, d->dim[1].cap}};
    const Layout cut = strategy_weight_cut(p->o->mesh);
    if (d->ndim != 2 || d->dim[0].cap < p->ranks)
        return err_fail(ERR_CONFIG,
                        "parallel.weights=stream: %s of a %s has %lld rows on a rank of tp, and "
                        "mesh.cp=%d ranks each need one; set a smaller mesh.cp or mesh.tp, or "
                        "parallel.weights=whole",
                        g->param[param].name, g->kind, (long long)d->dim[0].cap, p->ranks);
    w->w = v;
    w->width = d->dim[1].cap;
    TRY(ARENA_NEW(p->temp, p->ranks, &w->first));
    TRY(ARENA_NEW(p->temp, p->ranks, &w->rows));
    for (int i = 0; i < p->ranks; i++) {
        const Holding h = holding_of(&cut, p->o->mesh, &whole, p->group.rank[i]);
        w->first[i] = held_bounds(&h.dim[0]).lo;
        w->rows[i] = h.kept.n[0];
    }
    return OK;
}

/* Gives a weight or its gradient the rows that this rank owns. The gradient is complete over cp. */
static Err take_shard(WeightsPass *p, Value v)
{
    ValueInfo *a = &p->g->value[v];
    const int64_t rows = p->weight[a->index].rows[p->me];
    if (a->role == ROLE_DPARAM && (a->layout.partial & p->axes) != p->axes)
        return err_fail(ERR_CHECK,
                        "graph %s: the gradient %%%d %s of a streamed weight is not a sum over the "
                        "tokens of the ranks of cp",
                        p->g->kind, v, a->name);
    a->layout.partial &= (uint8_t)~p->axes;
    a->dims.dim[0].cap = rows;
    p->g->param[a->index].n[0] = rows;
    return OK;
}

static Err find_weights(WeightsPass *p)
{
    Graph *g = p->g;
    TRY(ARENA_NEW(p->temp, g->n_params + 1, &p->weight));
    for (Value v = 0; v < g->n_values; v++) {
        const ValueInfo *a = &g->value[v];
        if (a->role == ROLE_PARAM && g->param[a->index].view == VIEW_WEIGHT) TRY(find_shards(p, v));
    }
    for (Value v = 0; v < g->n_values; v++)
        if (is_streamed(p, v)) TRY(take_shard(p, v));
    return OK;
}

/* The GEMM for d.w that belongs to one for d.x, or NO_NODE. */
static int node_of_dw(const WeightsPass *p, Value w)
{
    for (int i = 0; i < p->n_old; i++) {
        const Node *n = &p->old[i];
        if (n->op == OP_linear_dw && is_streamed(p, n->out[0]) &&
            p->g->value[n->out[0]].index == p->g->value[w].index)
            return i;
    }
    return NO_NODE;
}

static Err write_node(WeightsPass *p, int index)
{
    const Node *n = &p->old[index];
    Node *room;
    if (p->written[index]) return OK;
    if (n->op == OP_linear && is_streamed(p, n->in[1])) return write_forward(p, n);
    if (n->op == OP_linear_dw && is_streamed(p, n->out[0])) return write_backward(p, NULL, n);
    if (n->op == OP_linear_dx && is_streamed(p, n->in[1])) {
        const int dw = node_of_dw(p, n->in[1]);
        if (dw != NO_NODE) p->written[dw] = true;
        return write_backward(p, n, dw == NO_NODE ? NULL : &p->old[dw]);
    }
    for (int j = 0; j < n->n_in; j++)
        if (is_streamed(p, n->in[j]))
            return err_fail(ERR_CONFIG,
                            "parallel.weights=stream: %s of a %s is read by op %s; weights of "
                            "linear layers alone can be streamed; set parallel.weights=whole",
                            p->g->value[n->in[j]].name, p->g->kind, op_info(n->op)->name);
    return graph_append(p->g, n, &room);
}

static Err weights_in(WeightsPass *p)
{
    Graph *g = p->g;
    p->axes = mesh_axes(p->o->mesh, VIEW_DENSE, "cp");
    TRY(mesh_group(p->o->mesh, VIEW_DENSE, p->axes, p->o->rank, g->arena, &p->group));
    p->ranks = p->group.n;
    p->me = mesh_part(p->o->mesh, VIEW_DENSE, p->axes, p->o->rank);
    p->number = graph_transfers(g);
    TRY(ARENA_NEW(p->temp, (int64_t)p->ranks * (g->n_params + 1), &p->sent));
    TRY(find_weights(p));
    p->old = g->node;
    p->n_old = g->n_nodes;
    TRY(ARENA_NEW(p->temp, p->n_old + 1, &p->written));
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (int i = 0; i < p->n_old; i++) TRY(write_node(p, i));
    TRY(add_arrived(p));
    TRY(graph_tidy(g));
    return graph_order_moves(g);
}

Err stream_weights(Graph *g, const CompileOptions *o)
{
    WeightsPass p = {.g = g,
                     .o = o,
                     .early_y = NO_VALUE,
                     .last_y = NO_VALUE,
                     .last_dx = NO_VALUE,
                     .held = NO_VALUE,
                     .arriving = NO_VALUE,
                     .into = NO_VALUE};
    Arena temp;
    TRY(arena_open(&temp, "weights", (size_t)1 << 32));
    p.temp = &temp;
    const Err err = weights_in(&p);
    arena_close(&temp);
    TRY(err);
    return graph_check(g);
}
