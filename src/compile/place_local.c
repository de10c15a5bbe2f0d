/* place_local.c -- from global shapes to those of one rank.
 *
 *   before:  %7 y [64,32] = linear %5 %6       x replicated, w sharded along i: y is a partial sum,
 *                                              pinned to replicate
 *   after:   %9 [64,32] = linear %5 %6         w [32,8] is this rank's
 *            %10 [64,32] = all_reduce %9 on comm
 *            %7 y [64,32] = wait %10
 *
 * Attributes that are positions in the global value follow: the first entry of a part of the
 * vocabulary, the index of the first head within its group. */
#include "compile/place.h"

#include <string.h>

Dims local_dims(const Dims *global, const Layout *l, const Mesh *m, int rank)
{
    Shape shape = {.ndim = global->ndim};
    Dims d = *global;
    for (int i = 0; i < shape.ndim; i++) shape.n[i] = global->dim[i].cap;
    const Holding h = holding_of(l, m, &shape, rank);
    for (int i = 0; i < d.ndim; i++) {
        d.dim[i].cap = h.kept.n[i];
        if (d.dim[i].slot != NO_SLOT) d.dim[i] = dim_held(d.dim[i].slot, &h.dim[i]);
    }
    return d;
}

/* A value that has been resharded already. */
typedef struct {
    Value v, result;
    Layout to;
    int32_t chunk;
} ReshardedValue;

typedef struct {
    PlacedGraph *p;
    Node *old;      /* before the pass */
    Dims *global;   /* [n_values] */
    Value *raw;     /* [n_values]: as its maker makes it, if that is another value */
    int32_t *chunk; /* [n_values]: of its maker */
    bool *inside;   /* [n_values]: made and read within that chunk */
    ReshardedValue *resharded;
    int n_resharded, cap_resharded;
} Localizer;

/* True if both layouts give every rank the same elements in the same order. */
static bool same_places(const Localizer *l, Value v, const Layout *a, const Layout *b)
{
    const Sharding x = {l->p->mesh, *a, ALL_STAGES, false}, y = {l->p->mesh, *b, ALL_STAGES, false};
    Reshard r;
    if (a->partial != b->partial) return false;
    if (layout_equal(a, b)) return true;
    return reshard_plan(&x, &y, &l->p->shape[v], "", &r) == OK && r.kind == RESHARD_NONE;
}

/* True if `from` has copies that are summands, and `to` has not the same. */
static bool sums_copies(const PlacedGraph *p, Value v, const Layout *from, const Layout *to)
{
    for (int i = 0; i < from->n_cuts; i++) {
        const Cut *c = &from->cut[i];
        bool stays = false;
        if (!cut_has_copies(c) || !(c->axes & p->copy_sums[v])) continue;
        for (int k = 0; k < to->n_cuts; k++)
            stays = stays || (to->cut[k].axes == c->axes && to->cut[k].dim == c->dim);
        if (!stays) return true;
    }
    return false;
}

/* Reshards v to `to`. With `into` (v itself) the source is v as its maker made it. */
static Value reshard_value(Localizer *l, Value v, const Layout *to, int32_t chunk, Value into)
{
    PlacedGraph *p = l->p;
    const Value x = into == NO_VALUE ? v : l->raw[v];
    const Layout *from = into == NO_VALUE ? &p->pin[v] : &p->made[v];
    const ReshardRequest m = {.from = *from,
                              .to = *to,
                              .sum_copies = sums_copies(p, v, from, to),
                              .shape = p->shape[v],
                              .dims = local_dims(&l->global[v], to, p->mesh, p->rank),
                              .global = l->global[v],
                              .chunk = chunk,
                              .is_max = p->max_axes[v] != 0,
                              .into = into};
    return place_reshard(p, x, &m);
}

/* Returns v in the layout of its reader. */
static Value read_as(Localizer *l, Value v, const Layout *want, int32_t chunk)
{
    PlacedGraph *p = l->p;
    if (same_places(l, v, want, &p->pin[v])) return v;
    if (l->chunk[v] != chunk) chunk = 0; /* once for all chunks */
    for (int i = 0; i < l->n_resharded; i++) {
        const ReshardedValue *b = &l->resharded[i];
        if (b->v == v && b->chunk == chunk && same_places(l, v, want, &b->to)) return b->result;
    }
    MUST(l->n_resharded < l->cap_resharded, "%d", l->cap_resharded);
    const Value result = reshard_value(l, v, want, chunk, NO_VALUE);
    l->resharded[l->n_resharded++] = (ReshardedValue){v, result, *want, chunk};
    return result;
}

/* Only the first part adds a name+ operand of an op with partial outputs. */
static bool is_first_part(const PlacedGraph *p, unsigned axes)
{
    return mesh_part(p->mesh, VIEW_DENSE, axes, p->rank) == 0;
}

static Err read_inputs(Localizer *l, int index, Node *n)
{
    PlacedGraph *p = l->p;
    const Node *old = &l->old[index];
    const Signature sig = op_signature(old->op);
    TRY(ARENA_NEW(p->g->arena, old->n_in + 1, &n->in));
    n->n_in = 0;
    for (int j = 0; j < old->n_in; j++) {
        const Layout *want = &p->want[index][j];
        const unsigned partial_axes = want->partial & ~(unsigned)p->pin[old->in[j]].partial;
        if (partial_axes && sig.in[j].added) {
            MUST(j == old->n_in - 1, "%s: operand %d", op_info(old->op)->name, j);
            if (is_first_part(p, partial_axes)) n->in[n->n_in++] = old->in[j];
            continue;
        }
        n->in[n->n_in++] = read_as(l, old->in[j], want, old->chunk);
        TRY(graph_err(p->g));
    }
    return OK;
}

static int64_t first_of(const Localizer *l, Value v, const Layout *layout, int dim)
{
    const Holding h = holding_of(layout, l->p->mesh, &l->p->shape[v], l->p->rank);
    return held_bounds(&h.dim[dim]).lo;
}

/* Sets the key heads that the local heads read. */
static void localize_heads(const Localizer *l, int index, Attr *attr)
{
    const Node *old = &l->old[index];
    const Shape *q = &l->p->shape[old->in[0]], *k = &l->p->shape[old->in[1]];
    const int dim = q->ndim - 2; /* [t,h,c], or [e,b,a,h,c] */
    const int64_t head = first_of(l, old->in[0], &l->p->want[index][0], dim);
    const int64_t key = first_of(l, old->in[1], &l->p->want[index][1], dim);
    attr->attention.group = q->n[dim] / k->n[dim];
    attr->attention.head_at = head - key * attr->attention.group;
    if (attr->attention.head_at < 0) attr->attention.head_at = 0; /* no heads here */
    for (int i = 0; i < l->p->want[index][0].n_cuts; i++) /* parts of sequences are not causal */
        if (l->p->want[index][0].cut[i].dim == 0) attr->attention.causal = 0;
}

/* Sets the factors of a product, those of this rank. */
static void localize_factors(const Localizer *l, int index, Node *n)
{
    const Node *old = &l->old[index];
    const PlacedGraph *p = l->p;
    const bool splits = old->op == OP_unfold || old->op == OP_unfold_along;
    const Value v = splits ? old->out[0] : old->in[0];
    const Dims d =
        local_dims(&l->global[v], splits ? &p->made[v] : &p->want[index][0], p->mesh, p->rank);
    n->attr.heads.size = d.dim[1].cap;
    n->attr.heads.inner = d.ndim > 3 ? d.dim[2].cap : 0;
}

static void localize_attr(const Localizer *l, int index, Node *n)
{
    const Node *old = &l->old[index];
    const Layout *want = l->p->want[index];
    Attr *attr = &n->attr.kernel;
    switch (old->op) {
    case OP_unfold:
    case OP_unfold_along:
    case OP_fold:
    case OP_fold_along:
        localize_factors(l, index, n);
        break;
    case OP_embedding:
        attr->vocab.base = first_of(l, old->in[1], &want[1], 0);
        break;
    case OP_embedding_dw:
        attr->vocab.base = first_of(l, old->out[0], &l->p->made[old->out[0]], 0);
        break;
    case OP_row_sums:
    case OP_loss_dx:
        attr->vocab.base = first_of(l, old->in[0], &want[0], 1);
        break;
    case OP_attention:
    case OP_attention_dx:
    case OP_attention_along:
    case OP_attention_along_dx:
        localize_heads(l, index, attr);
        break;
    default:
        break;
    }
}

/* Elements on the rank that has the most. Chunk sizes follow from that, so that all ranks have the
 * same chunks and their transfers match. */
static int64_t max_elements_of(const Localizer *l, Value v)
{
    const PlacedGraph *p = l->p;
    const Layout *made = &p->made[v];
    unsigned axes = 0;
    int64_t max_elements = 0;
    for (int i = 0; i < made->n_cuts; i++) axes |= made->cut[i].axes;
    for (int i = 0; i < mesh_parts(p->mesh, VIEW_DENSE, axes); i++) {
        const int rank = mesh_move(p->mesh, VIEW_DENSE, axes, i, p->rank);
        const Dims dims = local_dims(&l->global[v], made, p->mesh, rank);
        if (dims_count(&dims) > max_elements) max_elements = dims_count(&dims);
    }
    return max_elements;
}

/* Appends the node as this rank runs it, between the reshards of its operands and of its
 * results. */
static Err localize_node(Localizer *l, int index)
{
    PlacedGraph *p = l->p;
    Graph *g = p->g;
    Node n = l->old[index], *room;
    TRY(read_inputs(l, index, &n));
    localize_attr(l, index, &n);
    for (int j = 0; j < n.n_out; j++) {
        n.out[j] = l->raw[l->old[index].out[j]];
        if (n.chunk || n.op == OP_assign_rows) /* rooms for rows are equal too: compile/route.c */
            g->value[n.out[j]].max_elements = max_elements_of(l, l->old[index].out[j]);
    }
    TRY(graph_append(g, &n, &room));
    for (int j = 0; j < n.n_out; j++) {
        const Value v = l->old[index].out[j];
        if (l->raw[v] != v) reshard_value(l, v, &p->pin[v], l->inside[v] ? n.chunk : 0, v);
        TRY(graph_err(g));
    }
    return OK;
}

/* Sets the shapes of this rank, and adds a second value for each one that is not made as it is
 * pinned. */
static Err localize_values(Localizer *l)
{
    PlacedGraph *p = l->p;
    Graph *g = p->g;
    for (Value v = 0; v < p->n_values; v++) {
        l->global[v] = g->value[v].dims;
        l->raw[v] = v;
        g->value[v].layout = p->pin[v];
        g->value[v].dims = local_dims(&l->global[v], &p->pin[v], p->mesh, p->rank);
        if (same_places(l, v, &p->pin[v], &p->made[v])) continue;
        const Dims dims = local_dims(&l->global[v], &p->made[v], p->mesh, p->rank);
        l->raw[v] = graph_value(g, ROLE_LOCAL, "", g->value[v].dtype, dims);
        TRY(graph_err(g));
        g->value[l->raw[v]].layout = p->made[v];
    }
    for (Value v = 0; v < p->n_values; v++) {
        const ValueInfo *info = &g->value[v];
        if (info->role != ROLE_PARAM) continue;
        for (int i = 0; i < info->dims.ndim; i++)
            g->param[info->index].n[i] = info->dims.dim[i].cap;
    }
    return OK;
}

Err place_local(PlacedGraph *p)
{
    Graph *g = p->g;
    Localizer l = {.p = p, .old = g->node};
    int operands = 0;
    for (int i = 0; i < p->n_nodes; i++) operands += g->node[i].n_in + g->node[i].n_out;
    l.cap_resharded = operands;
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &l.global));
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &l.raw));
    TRY(ARENA_NEW(g->arena, p->n_values + 1, &l.chunk));
    TRY(ARENA_NEW(g->arena, operands + 1, &l.resharded));
    TRY(place_inside(g, g->arena, &l.inside));
    for (int i = 0; i < p->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_out; j++) l.chunk[g->node[i].out[j]] = g->node[i].chunk;
    TRY(localize_values(&l));
    g->node = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (int i = 0; i < p->n_nodes; i++) TRY(localize_node(&l, i));
    return OK;
}
