/* place_reshard.c -- the nodes that reshard a value on this rank.
 *
 *     replicate -> shard      a view of this rank's part; nothing moves
 *     shard -> replicate      begin all_gather, wait
 *     sum -> replicate        begin all_reduce, wait
 *     sum -> shard            begin reduce_scatter, wait
 *     shard -> other shard    begin all_to_all, wait
 *
 * Key heads that several ranks hold are sent to each of them, and their gradients are added after
 * the all-to-all. A sum that is also sliced, along another axis, is sliced first and then reduced.
 *
 * Two of these, where ranks along two axes change: a sum over tp whose rows move along cp.
 *
 * A message that is not contiguous in storage is packed before and unpacked after. */
#include "compile/place.h"

#include <string.h>
#include "ir/build.h"

typedef struct {
    PlacedGraph *p;
    Value v;
    const Layout *from, *to;
    Reshard plan;
    ReshardPart part;
    Dims dims;  /* of the result */
    Value into; /* the existing value that becomes it, or NO_VALUE */
    bool dense; /* the result is contiguous: it is sent */
} ReshardBuilder;

/* Row-major strides of a box in a message; returns its elements. */
static int64_t dense(const Box *b, int64_t *stride)
{
    int64_t step = 1;
    for (int i = b->ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= box_extent(b, i);
    }
    return step;
}

typedef enum { INTO_MESSAGE, OUT_OF_MESSAGE, WITHIN } PackKind;

/* The moves of a side as copies between this rank's storage and its message. */
static Err copies_of(const ReshardSide *side, int64_t n, PackKind kind, Arena *a, TransferPart *out)
{
    BoxCopy *copy;
    int64_t at = 0;
    TRY(ARENA_NEW(a, n + 1, &copy));
    for (int64_t i = 0; i < n; i++) {
        const Move *m = &side->move[i];
        BoxCopy *c = &copy[i];
        c->ndim = m->box.ndim;
        for (int d = 0; d < c->ndim; d++) c->n[d] = box_extent(&m->box, d);
        c->from_at = m->from_at;
        c->to_at = m->to_at;
        c->add = m->add && kind == OUT_OF_MESSAGE;
        memcpy(c->from_stride, m->from_stride, sizeof c->from_stride);
        memcpy(c->to_stride, m->to_stride, sizeof c->to_stride);
        if (kind == INTO_MESSAGE) c->to_at = at, at += dense(&m->box, c->to_stride);
        if (kind == OUT_OF_MESSAGE) c->from_at = at, at += dense(&m->box, c->from_stride);
    }
    *out = (TransferPart){.copy = copy, .n_copies = n};
    return OK;
}

/* Makes the newest node write `into` instead of `made`. */
static Value redirect(Graph *g, Value made, Value into)
{
    if (made == NO_VALUE || into == NO_VALUE) return made;
    g->node[g->n_nodes - 1].out[0] = into;
    return into;
}

static Value add_node(Graph *g, OpId op, const TransferPart *move, Value x, Dims dims)
{
    const DType dtype = g->err == OK ? g->value[x].dtype : F32;
    const OpAttr attr = {.move = {graph_move(g, move)}};
    Node *n = g->err == OK ? graph_node(g, op, &attr, 1, &x, &dims, 1) : NULL;
    if (!n) return NO_VALUE;
    n->queue = op_transfers(op) ? QUEUE_COMM : QUEUE_COMPUTE;
    g->value[n->out[0]].dtype = dtype;
    return n->out[0];
}

static Value add_pack(const ReshardBuilder *b, const ReshardSide *side, int64_t n, PackKind kind,
                      Value x, Dims dims)
{
    Graph *g = b->p->g;
    TransferPart move;
    const Err err = copies_of(side, n, kind, g->arena, &move);
    if (err != OK) g->err = err;
    return err == OK ? add_node(g, OP_pack, &move, x, dims) : NO_VALUE;
}

/* True if the part is one dense box of the whole: then a view is enough. */
static bool is_one_box(const ReshardBuilder *b)
{
    const ReshardSide *in = &b->part.in;
    if (in->peers.n > 1 || in->first[in->peers.n] > 1) return false;
    for (int d = 0; in->first[in->peers.n] == 1 && d < in->move[0].box.ndim; d++)
        if (in->move[0].box.skip[d]) return false;
    return true;
}

/* True if the part is whole along all dims but the first. */
static bool is_rows(const ReshardBuilder *b)
{
    bool rows = true;
    for (int d = 1; d < b->dims.ndim; d++)
        rows = rows && dim_same(b->dims.dim[d], b->p->g->value[b->v].dims.dim[d]);
    return rows;
}

static Value take_part(const ReshardBuilder *b)
{
    Graph *g = b->p->g;
    const ReshardSide *in = &b->part.in;
    const int64_t n = in->peers.n ? in->first[in->peers.n] : 0;
    if (b->into != NO_VALUE || !is_one_box(b) || (b->dense && !is_rows(b)))
        return redirect(g, add_pack(b, in, n, WITHIN, b->v, b->dims), b->into);
    Value v = b->v;
    const Holding whole = holding_of(b->from, b->p->mesh, &b->plan.shape, b->p->rank);
    for (int d = 0; d < b->dims.ndim && g->err == OK; d++) {
        const Dim want = b->dims.dim[d], from_dim = g->value[v].dims.dim[d];
        if (dim_same(want, from_dim)) continue;
        const int64_t from = n ? held_find(&whole.dim[d], in->move[0].box.lo[d]) : 0;
        v = part(g, v, d, want.cap ? from : 0, want);
    }
    return v;
}

static OpId transfer_op(ReshardKind kind)
{
    switch (kind) {
    case RESHARD_ALL_GATHER:
        return OP_all_gather;
    case RESHARD_REDUCE_SCATTER:
        return OP_reduce_scatter;
    case RESHARD_ALL_TO_ALL:
        return OP_all_to_all;
    default:
        return OP_all_reduce;
    }
}

static int64_t sum_of(const ReshardSide *s, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += s->count[i];
    return sum;
}

static Value transfer(const ReshardBuilder *b, bool is_max)
{
    Graph *g = b->p->g;
    const ReshardSide *in = &b->part.in, *out = &b->part.out;
    const OpId op = transfer_op(b->plan.kind);
    const bool gathers = op == OP_all_gather, scatters = op == OP_reduce_scatter;
    const bool all = op == OP_all_to_all;
    TransferPart move = {.number = graph_transfers(g),
                         .reduce = is_max ? REDUCE_MAX : REDUCE_SUM,
                         .axes = b->plan.axes};
    const Err err =
        mesh_group(b->p->mesh, VIEW_DENSE, b->plan.axes, b->p->rank, g->arena, &move.group);
    if (err != OK) g->err = err;
    if (gathers || all) move.to_counts = in->count;
    if (scatters || all) move.from_counts = out->count;
    /* A gather sends one message to all, a scatter receives one sum from all. */
    const int n_out = gathers || op == OP_all_reduce ? 1 : out->peers.n;
    const int n_in = scatters || op == OP_all_reduce ? 1 : in->peers.n;
    Value x = b->v;
    Dims dims = b->dims;
    /* What leaves may be the beginning of x: in order, but not all of it, or nothing. */
    const bool is_start = (scatters || all) && dims_count(&g->value[x].dims) != sum_of(out, n_out);
    if (!out->direct || is_start)
        x = add_pack(b, out, out->first[n_out], INTO_MESSAGE, x, dims1(dim_of(sum_of(out, n_out))));
    if (!in->direct) dims = dims1(dim_of(sum_of(in, n_in)));
    const Value begun = add_node(g, op, &move, x, dims);
    Value y = begun == NO_VALUE ? begun : wait_for(g, begun);
    if (!in->direct) y = add_pack(b, in, in->first[n_in], OUT_OF_MESSAGE, y, b->dims);
    return redirect(g, y, b->into);
}

static Value reshard_value(ReshardBuilder *b, bool is_max)
{
    Graph *g = b->p->g;
    switch (b->plan.kind) {
    case RESHARD_NONE:
        return b->v;
    case RESHARD_LOCAL:
        return take_part(b);
    case RESHARD_EXCHANGE:
    case N_RESHARD_KINDS:
        g->err = err_fail(ERR_CHECK, "graph %s: %%%d %s: no collective reshards it for its reader",
                          g->kind, b->v, g->value[b->v].name);
        return NO_VALUE;
    default:
        return transfer(b, is_max);
    }
}

/* One reshard; dense: its result is contiguous. */
static Value reshard_once(PlacedGraph *p, Value v, const ReshardRequest *m, bool dense)
{
    Graph *g = p->g;
    ReshardBuilder b = {
        .p = p, .v = v, .from = &m->from, .to = &m->to, .into = m->into, .dense = dense};
    const Sharding from = {p->mesh, m->from, ALL_STAGES, m->sum_copies},
                   to = {p->mesh, m->to, ALL_STAGES, false};
    Arena temp;
    if (g->err != OK) return NO_VALUE;
    Err err = reshard_plan(&from, &to, &m->shape, g->value[v].name, &b.plan);
    if (err == OK) reshard_by_groups(&b.plan);
    if (err == OK) err = arena_open(&temp, "reshard", (size_t)1 << 30);
    if (err == OK) {
        err = reshard_for_rank(&b.plan, p->rank, g->arena, &temp, &b.part);
        arena_close(&temp);
    }
    if (err != OK) {
        g->err = err;
        return NO_VALUE;
    }
    b.dims = m->dims;
    g->chunk = m->chunk;
    const Value y = reshard_value(&b, m->is_max);
    g->chunk = 0;
    if (y != NO_VALUE && y != v) g->value[y].layout = m->to; /* else the rank's part is all of it */
    return y;
}

/* True if an all-reduce would leave more than the rank's part: `to` is cut further than `from`. */
static bool slices_a_sum(const PlacedGraph *p, const ReshardRequest *m, const Layout *sliced)
{
    const Sharding from = {p->mesh, m->from, ALL_STAGES, m->sum_copies},
                   to = {p->mesh, *sliced, ALL_STAGES, false};
    Reshard whole, slice;
    const Sharding end = {p->mesh, m->to, ALL_STAGES, false};
    return reshard_plan(&from, &end, &m->shape, "", &whole) == OK &&
           whole.kind == RESHARD_ALL_REDUCE &&
           reshard_plan(&from, &to, &m->shape, "", &slice) == OK && slice.kind == RESHARD_LOCAL;
}

static bool is_collective(const PlacedGraph *p, const ReshardRequest *m, const Layout *a,
                          const Layout *b)
{
    const Sharding from = {p->mesh, *a, ALL_STAGES, m->sum_copies},
                   to = {p->mesh, *b, ALL_STAGES, false};
    Reshard r;
    return reshard_plan(&from, &to, &m->shape, "", &r) == OK && r.kind != RESHARD_EXCHANGE;
}

/* The layout that is `to` along these axes, and `from` along the others. */
static Layout partly(const PlacedGraph *p, const ReshardRequest *m, unsigned axes)
{
    Layout l = layout_replicate(m->from.view);
    l.partial = (uint8_t)((m->to.partial & axes) | (m->from.partial & ~axes));
    for (int i = 0; i < m->from.n_cuts; i++)
        if (!(m->from.cut[i].axes & axes)) l.cut[l.n_cuts++] = m->from.cut[i];
    for (int i = 0; i < m->to.n_cuts; i++)
        if (m->to.cut[i].axes & axes) l.cut[l.n_cuts++] = m->to.cut[i];
    return strategy_nested(l, p->mesh, strategy_token_dim(&m->global));
}

/* Finds a layout between the two, if no collective does both at once: a sum over tp whose rows move
 * between ranks along cp. */
static bool finds_step(const PlacedGraph *p, const ReshardRequest *m, Layout *out)
{
    if (is_collective(p, m, &m->from, &m->to)) return false;
    for (int i = p->mesh->view[VIEW_DENSE].n_axes - 1; i >= 0; i--) { /* sums over tp first */
        *out = partly(p, m, 1u << i);
        if (layout_equal(out, &m->from) || layout_equal(out, &m->to)) continue;
        if (is_collective(p, m, &m->from, out) && is_collective(p, m, out, &m->to)) return true;
    }
    return false;
}

static Value reshard_in_steps(PlacedGraph *p, Value v, const ReshardRequest *m, const Layout *step)
{
    ReshardRequest first = *m, rest = *m;
    first.to = rest.from = *step;
    first.into = NO_VALUE;
    first.dims = local_dims(&m->global, step, p->mesh, p->rank);
    rest.sum_copies = rest.is_max = false;
    const Value between = reshard_once(p, v, &first, false);
    return between == NO_VALUE ? between : reshard_once(p, between, &rest, false);
}

Value place_reshard(PlacedGraph *p, Value v, const ReshardRequest *m)
{
    Layout step;
    if (finds_step(p, m, &step)) return reshard_in_steps(p, v, m, &step);
    ReshardRequest slice = *m, rest = *m;
    slice.to.partial = m->from.partial;
    slice.into = NO_VALUE;
    rest.from = slice.to;
    if (!slices_a_sum(p, m, &slice.to)) return reshard_once(p, v, m, false);
    const Value part = reshard_once(p, v, &slice, true);
    return part == NO_VALUE ? part : reshard_once(p, part, &rest, false);
}
