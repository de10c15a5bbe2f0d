/* lower_bytes.c -- the values that share storage.
 *
 *     y [T,96] ----------------------- root, contiguous
 *       q = part y [T,0:64]            bytes of y, offset 0,  strides 96, 1
 *       heads q [T,4,16]               bytes of y, offset 0,  strides 96, 16, 1
 *       k = part y [T,64:96]           bytes of y, offset 64, strides 96, 1
 *
 * A join works the other way round: the parts are inside of the whole, so the whole is placed
 * first.
 *
 * Two passes. The first shares only what must be shared. Its result shows which values overlap, and
 * so where the second may let a node overwrite an input that is dead. */
#include "compile/lower.h"

typedef struct {
    const Graph *g;
    const Orders *orders;
    StorageView *bytes;
    const StorageView *plain; /* of the first pass; NULL during it */
    const int *maker;         /* [n_values] */
} StoragePass;

static void contiguous(const Dims *d, int64_t *stride)
{
    int64_t step = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= d->dim[i].cap;
    }
}

/* A view that shows one dim of x, a product, as several of y, or the inverse: heads, unfold. */
typedef struct {
    int dim, more;       /* the product, and the dims that y has in addition */
    const Dims *factors; /* with the factors, from `dim` on */
    bool splits;         /* the factors are those of the output */
} ProductView;

static bool product_view(const Graph *g, const Node *n, ProductView *out)
{
    const bool splits = n->op == OP_heads || n->op == OP_unfold || n->op == OP_unfold_along;
    const bool joins = n->op == OP_merge || n->op == OP_fold || n->op == OP_fold_along;
    const Dims *x = n->n_in ? &g->value[n->in[0]].dims : NULL;
    if (!splits && !joins) return false;
    const Dims *y = &g->value[n->out[0]].dims;
    *out = (ProductView){.dim = n->op == OP_heads || n->op == OP_merge,
                         .more = splits ? y->ndim - x->ndim : x->ndim - y->ndim,
                         .factors = splits ? y : x,
                         .splits = splits};
    return true;
}

static StorageView split_dim(StorageView b, const ProductView *v)
{
    for (int i = v->factors->ndim - 1; i > v->dim + v->more; i--)
        b.stride[i] = b.stride[i - v->more];
    b.stride[v->dim + v->more] = b.stride[v->dim];
    for (int i = v->dim + v->more - 1; i >= v->dim; i--)
        b.stride[i] = b.stride[i + 1] * v->factors->dim[i + 1].cap;
    return b;
}

static StorageView join_dims(StorageView b, const ProductView *v)
{
    for (int i = v->dim; i < v->factors->ndim; i++)
        b.stride[i] = i + v->more < v->factors->ndim ? b.stride[i + v->more] : 0;
    return b;
}

/* True if the factors are one run of strides, so that they can be joined. */
static bool is_one_run(const StorageView *b, const ProductView *v)
{
    for (int i = v->dim; i < v->dim + v->more; i++)
        if (v->factors->dim[i].cap > 1 &&
            b->stride[i] != b->stride[i + 1] * v->factors->dim[i + 1].cap)
            return false;
    return true;
}

/* Gives v this storage. If v is a view of a value, that value gets it too. */
static Err put_inside(StoragePass *w, Value v, StorageView b)
{
    const Graph *g = w->g;
    const int maker = w->maker[v];
    if (maker == NO_NODE || w->bytes[v].set)
        return err_fail(ERR_CHECK,
                        "graph %s: value %%%d %s cannot be made in place: it has bytes already",
                        g->kind, v, g->value[v].name);
    w->bytes[v] = b;
    const Node *n = &g->node[maker];
    ProductView view;
    if (product_view(g, n, &view) && !view.splits)
        return put_inside(w, n->in[0], split_dim(b, &view));
    if (product_view(g, n, &view) && is_one_run(&b, &view))
        return put_inside(w, n->in[0], join_dims(b, &view));
    if (n->op == OP_after) return put_inside(w, n->in[0], b);
    if (op_info(n->op)->class == CLASS_VIEW && n->op != OP_join)
        return err_fail(ERR_CHECK, "graph %s: value %%%d %s cannot be made in place: it is a view",
                        g->kind, v, g->value[v].name);
    return OK;
}

static StorageView own_bytes(const Graph *g, Value v)
{
    StorageView b = {.root = v, .set = true};
    contiguous(&g->value[v].dims, b.stride);
    return b;
}

/* Index of the operand that the output is added to, or -1. */
static int sum_operand(const Node *n, int output)
{
    const int operand = op_sum_operand(n->op, output);
    return operand < n->n_in ? operand : -1;
}

/* True for inputs that a kernel may overwrite with its output, as device/kernels.def states. The
 * residual of linear_add is excluded, although the kernel permits it: cuBLASLt rounds an in-place
 * sum differently from one out of place, so results would depend on the recomputed values. */
static bool reusable(OpId op, int which)
{
    if (op == OP_add) return which < 2;
    if (op == OP_all_reduce) return true; /* in place, from the begin on */
    if (op == OP_layernorm_dx) return which == 0 || which == 5;
    if (op == OP_rmsnorm_dx || op == OP_headnorm_dx) return which == 0 || which == 4;
    return which == 0 && (op == OP_scale || op == OP_rope || op == OP_gelu_dx || op == OP_loss_dx ||
                          op == OP_token_loss_dx);
}

/* The elements of its root that a value covers, as rows: [row, row_end) x [column, column_end). A
 * shape that is no such box counts as the whole root. */
typedef struct {
    int64_t row, row_end, column, column_end;
} StorageBox;

static StorageBox storage_box(const StoragePass *w, Value v)
{
    const StorageView *b = &w->plain[v];
    const Dims *root = &w->g->value[b->root].dims, *d = &w->g->value[v].dims;
    const int64_t rows = root->dim[0].cap, width = rows ? dims_count(root) / rows : 0;
    int64_t last = 0;
    for (int i = 1; i < d->ndim; i++) last += (d->dim[i].cap - 1) * b->stride[i];
    if (!width || b->stride[0] != width || b->offset % width + last >= width)
        return (StorageBox){0, rows, 0, width};
    return (StorageBox){b->offset / width, b->offset / width + d->dim[0].cap, b->offset % width,
                        b->offset % width + last + 1};
}

static bool overlap(const StoragePass *w, Value u, Value v)
{
    if (w->plain[u].root != w->plain[v].root) return false;
    const StorageBox a = storage_box(w, u), b = storage_box(w, v);
    return a.row < b.row_end && b.row < a.row_end && a.column < b.column_end &&
           b.column < a.column_end;
}

/* True if the node reads or writes bytes of v. */
static bool touches(const StoragePass *w, const Node *n, Value v)
{
    if (op_info(n->op)->class == CLASS_VIEW) return false;
    for (int j = 0; j < n->n_in + n->n_out; j++)
        if (overlap(w, j < n->n_in ? n->in[j] : n->out[j - n->n_in], v)) return true;
    return false;
}

int lower_end_of(const Graph *g, int node)
{
    if (!op_begins(g->node[node].op)) return node;
    for (int k = 0; k < g->n_nodes; k++)
        if (g->node[k].op == OP_wait && g->node[k].in[0] == g->node[node].out[0]) return k;
    return node;
}

/* True if `node` is the last to touch v, in every order that contains it. Later overwrites of v
 * pass this same check, so the sharing of the first pass is all that counts. */
static bool touches_last(const StoragePass *w, int node, Value v)
{
    const Graph *g = w->g;
    for (int i = 0; i < g->n_nodes; i++) {
        if (i == node || !touches(w, &g->node[i], v)) continue;
        const int end = lower_end_of(g, i);
        if (g->node[i].phase != g->node[node].phase) return false;
        for (int p = 0; p < N_PHASES; p++)
            if (w->orders->at[p][node] >= 0 && w->orders->at[p][end] > w->orders->at[p][node])
                return false;
    }
    return true;
}

static bool same_shape(const Graph *g, Value a, Value b)
{
    const ValueInfo *x = &g->value[a], *y = &g->value[b];
    bool same = x->dims.ndim == y->dims.ndim && x->dtype == y->dtype && x->space == y->space;
    for (int i = 0; same && i < x->dims.ndim; i++) same = dim_same(x->dims.dim[i], y->dims.dim[i]);
    return same;
}

static bool is_view(const StoragePass *w, Value v)
{
    const OpId op = w->maker[v] == NO_NODE ? OP_add : w->g->node[w->maker[v]].op;
    return op_info(op)->class == CLASS_VIEW || op == OP_wait;
}

/* True if a node of another phase than `node` touches the root of v. */
static bool is_kept(const StoragePass *w, int node, Value v)
{
    const Graph *g = w->g;
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->phase == g->node[node].phase || op_info(n->op)->class == CLASS_VIEW) continue;
        for (int j = 0; j < n->n_in + n->n_out; j++)
            if (w->plain[j < n->n_in ? n->in[j] : n->out[j - n->n_in]].root == w->plain[v].root)
                return true;
    }
    return false;
}

/* True if overwriting a part would keep its whole root for a later phase. (Queries of a slice are
 * next to its keys and values, which are dead there.) */
static bool keeps_more(const StoragePass *w, int node, Value v)
{
    const Graph *g = w->g;
    const Value out = g->node[node].out[0], root = w->plain[v].root;
    if (dims_count(&g->value[v].dims) == dims_count(&g->value[root].dims)) return false;
    return is_kept(w, node, out) && !is_kept(w, node, v);
}

static bool is_dense(const StorageView *b, const Dims *d)
{
    int64_t dense[MAX_DIMS];
    bool same = true;
    contiguous(d, dense);
    for (int i = 0; i < d->ndim; i++)
        same = same && (d->dim[i].cap <= 1 || b->stride[i] == dense[i]);
    return same || dims_count(d) == 0;
}

/* True if v is a message, or packed or unpacked as one, and this storage has gaps. */
static bool has_gaps(const StoragePass *w, Value v, const StorageView *b)
{
    const int maker = w->maker[v];
    if (!b->set || is_dense(b, &w->g->value[v].dims)) return false;
    const OpId op = maker == NO_NODE ? OP_add : w->g->node[maker].op;
    return graph_is_moved(w->g, v) || op == OP_pack || op == OP_wait; /* a message arrives there */
}

/* An input that the node may overwrite, or -1. Not an input that shares storage with a given or
 * handed on value, nor one whose storage has gaps that a transfer would send. */
static int dying_input(const StoragePass *w, int node)
{
    const Graph *g = w->g;
    const Node *n = &g->node[node];
    for (int j = 0; j < n->n_in && w->plain; j++) {
        const Value v = n->in[j];
        if (!reusable(n->op, j) || !same_shape(g, v, n->out[0])) continue;
        if (has_gaps(w, n->out[0], &w->plain[v]) || has_gaps(w, v, &w->bytes[n->out[0]])) continue;
        if (has_gaps(w, n->out[0], &w->bytes[v])) continue; /* v itself overwrites a part */
        if (g->value[w->plain[v].root].role == ROLE_LOCAL && touches_last(w, node, v) &&
            !keeps_more(w, node, v))
            return j;
    }
    return -1;
}

/* Makes an input that dies here in the storage of the output, if that is fixed already. */
static Err place_input_under(StoragePass *w, int node)
{
    const Node *n = &w->g->node[node];
    const int j = n->n_out ? dying_input(w, node) : -1;
    if (j < 0 || w->bytes[n->in[j]].set || is_view(w, n->in[j])) return OK;
    return put_inside(w, n->in[j], w->bytes[n->out[0]]);
}

static Err place_join(StoragePass *w, const Node *n)
{
    int64_t from = 0;
    const int dim = (int)n->attr.part.dim;
    for (int j = 0; j < n->n_in; j++) {
        StorageView b = w->bytes[n->out[0]];
        b.offset += from * b.stride[dim];
        from += w->g->value[n->in[j]].dims.dim[dim].cap;
        TRY(put_inside(w, n->in[j], b));
    }
    return OK;
}

/* Places wholes before their parts: from the last node to the first. */
static Err place_parts(StoragePass *w)
{
    const Graph *g = w->g;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const Node *n = &g->node[i];
        bool sums = false;
        for (int j = 0; j < n->n_out; j++) { /* outputs of the unit have storage of their own */
            const int sum = sum_operand(n, j);
            const bool settled =
                n->op == OP_join || sum >= 0 || g->value[n->out[j]].role != ROLE_LOCAL;
            if (settled && !w->bytes[n->out[j]].set) w->bytes[n->out[j]] = own_bytes(g, n->out[j]);
            if (sum >= 0) TRY(put_inside(w, n->in[sum], w->bytes[n->out[j]]));
            sums = sums || sum >= 0;
        }
        if (sums) continue;
        if (n->op == OP_wait && w->bytes[n->out[0]].set) /* the transfer arrives there */
            TRY(put_inside(w, n->in[0], w->bytes[n->out[0]]));
        else if (n->op == OP_join)
            TRY(place_join(w, n));
        else if (w->bytes[n->out[0]].set)
            TRY(place_input_under(w, i));
    }
    return OK;
}

/* Places the rest, from the first node on: views, results that overwrite an input, and values with
 * storage of their own. */
static Err place_rest(StoragePass *w)
{
    const Graph *g = w->g;
    for (Value v = 0; v < g->n_values; v++)
        if (w->maker[v] == NO_NODE) w->bytes[v] = own_bytes(g, v);
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        for (int j = 0; j < n->n_out; j++) {
            const Value v = n->out[j];
            if (w->bytes[v].set) continue;
            w->bytes[v] = own_bytes(g, v);
            const StorageView in = n->n_in ? w->bytes[n->in[0]] : w->bytes[v];
            const int dying = j == 0 ? dying_input(w, i) : -1;
            if (n->op == OP_wait || n->op == OP_part || n->op == OP_after) w->bytes[v] = in;
            if (n->op == OP_part)
                w->bytes[v].offset += n->attr.part.from * in.stride[n->attr.part.dim];
            ProductView view;
            if (product_view(g, n, &view)) {
                if (!view.splits && !is_one_run(&in, &view))
                    return err_fail(ERR_CHECK,
                                    "graph %s: value %%%d %s cannot be a view: the dims that it "
                                    "joins are apart in storage",
                                    g->kind, v, g->value[v].name);
                w->bytes[v] = view.splits ? split_dim(in, &view) : join_dims(in, &view);
            }
            if (dying >= 0) w->bytes[v] = w->bytes[n->in[dying]];
        }
    }
    return OK;
}

static Err run_pass(StoragePass *w, Arena *arena)
{
    TRY(ARENA_NEW(arena, w->g->n_values + 1, &w->bytes));
    TRY(place_parts(w));
    return place_rest(w);
}

Err lower_bytes(const LowerContext *l, StorageView **out)
{
    StoragePass w = {.g = l->g, .orders = &l->orders, .maker = l->maker};
    TRY(run_pass(&w, l->arena));
    w.plain = w.bytes;
    TRY(run_pass(&w, l->arena));
    *out = w.bytes;
    return OK;
}
