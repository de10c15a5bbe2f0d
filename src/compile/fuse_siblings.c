/* fuse_siblings.c -- GEMMs that read one x, fused into one.
 *
 *     before:  q = linear x wq;  k = linear x wk;  v = linear x wv      weights back to back
 *     after:   y = linear x wq..wv;  q, k, v are parts of y
 *              and d.q, d.k, d.v are made inside d.y: one GEMM for dx, one for each sum */
#include "compile/fuse.h"

#include "ir/build.h"

enum { MAX_SIBLINGS = MAX_IN };

typedef struct {
    int n;
    int node[MAX_SIBLINGS]; /* the forward GEMMs, in the order of their weights */
    Value x;
    Value y[MAX_SIBLINGS]; /* their outputs */
    Value w, bias;         /* of all of them together */
    int64_t width;
} Siblings;

static const ValueInfo *info_of(const Graph *g, Value v) { return &g->value[v]; }

/* True if b's operand `at` directly follows a's in storage, or if both have none. */
static bool adjoins(const Graph *g, const Node *a, const Node *b, int at)
{
    if (a->n_in <= at || b->n_in <= at) return a->n_in <= at && b->n_in <= at;
    const ValueInfo *p = info_of(g, a->in[at]), *q = info_of(g, b->in[at]);
    if (p->role != ROLE_PARAM || q->role != ROLE_PARAM || q->index != p->index + p->span)
        return false;
    const ParamInfo *x = &g->param[p->index], *y = &g->param[q->index];
    return x->view == y->view && x->pack == y->pack;
}

/* True if the value is sent to other ranks, or what rope makes of it. */
static bool is_sent(const Graph *g, Value v)
{
    if (graph_is_moved(g, v)) return true;
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const bool follows = n->op == OP_rope || op_info(n->op)->class == CLASS_VIEW;
        if (follows && n->n_out && n->n_in && n->in[0] == v && is_sent(g, n->out[0])) return true;
    }
    return false;
}

/* True if attention reads it along a dim with others within it: places are joined with heads
 * (device/along.h), so heads must be next to each other in storage. */
static bool needs_runs(const Graph *g, Value v)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const bool reads = n->n_out && n->n_in && n->in[0] == v;
        if (reads && n->op == OP_unfold_along && n->attr.heads.inner > 1) return true;
        if (reads && (n->op == OP_heads || n->op == OP_rope) && needs_runs(g, n->out[0]))
            return true;
    }
    return false;
}

/* Not if the output is sent to other ranks: a part of a larger one would not be contiguous, and
 * rope could not overwrite it. */
static bool may_join(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    return n->op == OP_linear && n->chunk == 0 && info_of(g, n->in[1])->role == ROLE_PARAM &&
           info_of(g, n->out[0])->role == ROLE_LOCAL && !is_sent(g, n->out[0]) &&
           !needs_runs(g, n->out[0]);
}

static bool find_siblings(const Graph *g, int first, Siblings *s)
{
    if (!may_join(g, first)) return false;
    *s = (Siblings){.n = 1, .node = {first}, .x = g->node[first].in[0]};
    for (bool more = true; more && s->n < MAX_SIBLINGS;) {
        more = false;
        const Node *last = &g->node[s->node[s->n - 1]];
        for (int i = 0; i < g->n_nodes && !more; i++) {
            const Node *n = &g->node[i];
            if (i == first || !may_join(g, i) || n->in[0] != s->x) continue;
            more = adjoins(g, last, n, 1) && adjoins(g, last, n, 2);
            if (more) s->node[s->n++] = i;
        }
    }
    return s->n > 1;
}

/* The node that makes gradients of parameter value w, or NO_NODE. Several: NO_NODE too, since their
 * sum cannot become a part of a larger one. */
static int gradient_node(const Graph *g, Value w)
{
    int found = NO_NODE, n_found = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        for (int j = 0; j < g->node[i].n_out; j++) {
            const ValueInfo *dw = info_of(g, g->node[i].out[j]);
            if (dw->role != ROLE_DPARAM || dw->index != info_of(g, w)->index) continue;
            found = i;
            n_found++;
        }
    }
    return n_found == 1 ? found : NO_NODE;
}

/* The backward nodes of a sibling: dx, dw and the gradient of the bias. */
typedef struct {
    Value dy;
    int node[3]; /* NO_NODE: there is none */
} SiblingGrads;

/* Returns false if the sibling's backward part cannot be distinguished from that of other GEMMs. */
static bool find_grads(const Graph *g, const Siblings *s, int which, SiblingGrads *out)
{
    const Node *gemm = &g->node[s->node[which]];
    const int dw = gradient_node(g, gemm->in[1]);
    if (dw == NO_NODE || g->node[dw].op != OP_linear_dw || g->node[dw].in[1] != s->x) return false;
    *out = (SiblingGrads){g->node[dw].in[0], {NO_NODE, dw, NO_NODE}};
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->op == OP_linear_dx && n->n_out && n->in[0] == out->dy && n->in[1] == gemm->in[1])
            out->node[0] = i;
    }
    if (gemm->n_in < 3) return true;
    out->node[2] = gradient_node(g, gemm->in[2]);
    return out->node[2] != NO_NODE && g->node[out->node[2]].op == OP_bias_dw;
}

/* Replaces pairs of values in set[] by the add that sums them; collects these adds in dead[].
 * Returns true if one value is left. */
static bool collapse(const Graph *g, Value *set, int n, int *dead, int *n_dead)
{
    while (n > 1) {
        int found = NO_NODE, a = 0, b = 0;
        for (int i = 0; i < g->n_nodes && found == NO_NODE; i++) {
            const Node *add = &g->node[i];
            if (add->op != OP_add || !add->n_out) continue;
            for (a = 0; a < n && set[a] != add->in[0];) a++;
            for (b = 0; b < n && set[b] != add->in[1];) b++;
            if (a < n && b < n && a != b) found = i;
        }
        if (found == NO_NODE) return false;
        if (graph_readers(g, set[a]) != 1 || graph_readers(g, set[b]) != 1) return false;
        dead[(*n_dead)++] = found;
        const int hi = a > b ? a : b, lo = a > b ? b : a;
        set[lo] = g->node[found].out[0];
        set[hi] = set[--n];
    }
    return true;
}

/* A value for several parameters that are stored back to back. */
static Value fused_param(Graph *g, const Siblings *s, int at, Role role, const char *prefix)
{
    const Value first = g->node[s->node[0]].in[at], last = g->node[s->node[s->n - 1]].in[at];
    ValueInfo info = g->value[first];
    info.dims.dim[0].cap = s->width;
    const DType dtype = role == ROLE_PARAM ? info.dtype : dtype_wide(g->dtype);
    const Value v = graph_value(g, role, "", dtype, info.dims);
    if (v == NO_VALUE) return v;
    g->value[v].index = info.index;
    g->value[v].span = g->value[last].index + g->value[last].span - info.index;
    g->value[v].layout = info.layout;
    return graph_name(g, v, "%s%s..%d", prefix, info.name, g->value[v].span);
}

static Err join_forward(Graph *g, Siblings *s)
{
    const bool bias = g->node[s->node[0]].n_in == 3;
    for (int i = 0; i < s->n; i++) {
        s->y[i] = g->node[s->node[i]].out[0];
        s->width += g->value[s->y[i]].dims.dim[1].cap;
    }
    s->w = fused_param(g, s, 1, ROLE_PARAM, "");
    s->bias = bias ? fused_param(g, s, 2, ROLE_PARAM, "") : NO_VALUE;
    const OpAttr attr = g->node[s->node[0]].attr;
    const Value in[] = {s->x, s->w, s->bias};
    const Node *made = graph_node(g, OP_linear, &attr, bias ? 3 : 2, in, NULL, 1);
    if (!made) return graph_err(g);
    const Value y = made->out[0];
    int64_t from = 0;
    for (int i = 0; i < s->n; i++) {
        Node *n = &g->node[s->node[i]];
        n->op = OP_part;
        n->n_in = 1;
        n->in[0] = y;
        n->attr = (OpAttr){.part = {1, from}};
        from += g->value[s->y[i]].dims.dim[1].cap;
    }
    return OK;
}

/* Joins the gradients of the outputs, for one GEMM for dx and one for each sum. */
static Err join_backward(Graph *g, const Siblings *s, const SiblingGrads *back, Value dx)
{
    Value dy[MAX_SIBLINGS];
    Dims dims = g->value[back[0].dy].dims;
    dims.dim[1].cap = s->width;
    for (int i = 0; i < s->n; i++) dy[i] = back[i].dy;
    const Value all = join(g, s->n, dy, 1, dims);
    if (all == NO_VALUE) return graph_err(g);
    for (int i = 0; i < s->n; i++) {
        for (int j = 0; j < 3; j++) {
            if (back[i].node[j] == NO_NODE) continue;
            Node *n = &g->node[back[i].node[j]];
            n->in[0] = all;
            if (i > 0) n->n_out = 0;
            if (i > 0) continue;
            if (j == 0) n->in[1] = s->w, n->out[0] = dx;
            if (j > 0) {
                const uint8_t partial = g->value[n->out[0]].layout.partial;
                n->out[0] = fused_param(g, s, j, ROLE_DPARAM, "d.");
                if (graph_err(g) == OK) g->value[n->out[0]].layout.partial = partial;
            }
        }
    }
    return graph_err(g);
}

/* True if it is a part of a join, or the `sum` operand of a GEMM: then its storage is fixed. */
static bool has_fixed_storage(const Graph *g, Value v)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        const bool sums = n->op == OP_linear_dx && n->n_in == 3;
        for (int j = 0; j < n->n_in && n->n_out; j++)
            if (n->in[j] == v && (n->op == OP_join || (sums && j == 2))) return true;
    }
    return false;
}

/* True for gradients that can be made in place inside one value: made by a node that is not a view
 * and writes no contiguous message, and without fixed storage. */
static bool can_be_made_inside(const Graph *g, Value v)
{
    const int maker = graph_maker(g, v);
    if (maker == NO_NODE || info_of(g, v)->role != ROLE_LOCAL || has_fixed_storage(g, v))
        return false;
    const OpId op = g->node[maker].op;
    if (op == OP_heads || op == OP_merge || op == OP_fold_along)
        return can_be_made_inside(g, g->node[maker].in[0]);
    return op_info(op)->class != CLASS_VIEW && op != OP_wait && op != OP_pack &&
           !graph_is_moved(g, v);
}

static bool has_backward(const Graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int j = 0; j < g->node[i].n_out; j++)
            if (info_of(g, g->node[i].out[j])->role == ROLE_DPARAM) return true;
    return false;
}

/* True if the backward parts of all siblings can become one. *dx is then the sum of their dx, and
 * dead[] has the adds that computed it. */
static bool backward_fits(const Graph *g, const Siblings *s, SiblingGrads *back, Value *dx,
                          int *dead, int *n_dead)
{
    Value term[MAX_SIBLINGS];
    int n_terms = 0;
    for (int i = 0; i < s->n; i++) {
        if (!find_grads(g, s, i, &back[i]) || !can_be_made_inside(g, back[i].dy)) return false;
        for (int k = 0; k < i; k++)
            if (back[k].dy == back[i].dy) return false; /* it cannot be in two joins */
        const int gemm = back[i].node[0];
        if (gemm != NO_NODE) term[n_terms++] = g->node[gemm].out[0];
    }
    if (n_terms && n_terms != s->n) return false;
    if (n_terms && !collapse(g, term, n_terms, dead, n_dead)) return false;
    *dx = n_terms ? term[0] : NO_VALUE;
    return true;
}

Err fuse_siblings(Graph *g, bool *found)
{
    Siblings s;
    const bool back = has_backward(g);
    for (int first = 0; first < g->n_nodes; first++) {
        SiblingGrads part[MAX_SIBLINGS];
        Value dx = NO_VALUE;
        int dead[MAX_SIBLINGS], n_dead = 0;
        if (!find_siblings(g, first, &s)) continue;
        if (back && !backward_fits(g, &s, part, &dx, dead, &n_dead)) continue;
        TRY(join_forward(g, &s));
        if (back) TRY(join_backward(g, &s, part, dx));
        for (int i = 0; i < n_dead; i++) g->node[dead[i]].n_out = 0;
        *found = true;
        return graph_tidy(g);
    }
    return OK;
}
