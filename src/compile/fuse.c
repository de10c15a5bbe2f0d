/* fuse.c -- fewer, larger ops. Each pattern is a row: a name and a function that rewrites the first
 * place it finds; it is called again until it finds none.
 *
 *   siblings           q = linear x wq; k = linear x wk; v = linear x wv, weights back to back in
 * storage
 *                  ->  y = linear x wq..wv; q, k, v are parts of y; their gradients are made in
 * place inside dy, and dx, dw are one product each sum into product   s = add a (linear_dx dy w) ->
 * s = linear_dx dy w a, added to what a holds
 */
#include "compile/compile.h"

#include <string.h>
#include "ir/build.h"

enum { MAX_SIBLINGS = MAX_IN };

typedef struct {
    int n;
    int node[MAX_SIBLINGS]; /* the forward products, in the order of their weights */
    Value x;
    Value y[MAX_SIBLINGS]; /* their outputs */
    Value w, bias;         /* of all of them together */
    int64_t width;
} Siblings;

static const ValueInfo *info_of(const Graph *g, Value v) { return &g->value[v]; }

/* Does b's operand `at` lie right behind a's in storage? Both may have none. */
static bool adjoins(const Graph *g, const Node *a, const Node *b, int at)
{
    if (a->n_in <= at || b->n_in <= at) return a->n_in <= at && b->n_in <= at;
    const ValueInfo *p = info_of(g, a->in[at]), *q = info_of(g, b->in[at]);
    return p->role == ROLE_PARAM && q->role == ROLE_PARAM && q->index == p->index + p->span;
}

static bool may_join(const Graph *g, int index)
{
    const Node *n = &g->node[index];
    return n->op == OP_linear && n->chunk == 0 && info_of(g, n->in[1])->role == ROLE_PARAM &&
           info_of(g, n->out[0])->role == ROLE_LOCAL;
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

/* The node of this op whose first operand is v, or NO_NODE. */
static int reader_of(const Graph *g, OpId op, Value v)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i].op == op && g->node[i].n_out && g->node[i].in[0] == v) return i;
    return NO_NODE;
}

/* The gradient of output y: what its product's linear_dw reads. */
static Value upstream(const Graph *g, const Siblings *s, int which)
{
    const Value w = g->node[s->node[which]].in[1];
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *n = &g->node[i];
        if (n->op != OP_linear_dw || !n->n_out) continue;
        const ValueInfo *dw = info_of(g, n->out[0]);
        if (dw->role == ROLE_DPARAM && dw->index == info_of(g, w)->index) return n->in[0];
    }
    return NO_VALUE;
}

/* Adds whose two terms are both in set[]: the set shrinks to their sum. True when one value is
 * left. */
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

/* A value for several parameters that lie back to back. */
static Value wide_param(Graph *g, const Siblings *s, int at, Role role, const char *prefix)
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
    s->w = wide_param(g, s, 1, ROLE_PARAM, "");
    s->bias = bias ? wide_param(g, s, 2, ROLE_PARAM, "") : NO_VALUE;
    const Attr attr = g->node[s->node[0]].attr;
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
        n->attr = (Attr){.part = {1, from}};
        from += g->value[s->y[i]].dims.dim[1].cap;
    }
    return OK;
}

/* The gradients of the outputs side by side, read by one product for dx and one for each sum. */
static Err join_backward(Graph *g, const Siblings *s, const Value *dy, Value dx)
{
    Dims dims = g->value[dy[0]].dims;
    dims.dim[1].cap = s->width;
    const Value all = join(g, s->n, dy, 1, dims);
    if (all == NO_VALUE) return graph_err(g);
    for (int i = 0; i < s->n; i++) {
        const int sums[] = {reader_of(g, OP_linear_dx, dy[i]), reader_of(g, OP_linear_dw, dy[i]),
                            reader_of(g, OP_bias_dw, dy[i])};
        for (int j = 0; j < 3; j++) {
            if (sums[j] == NO_NODE) continue;
            Node *n = &g->node[sums[j]];
            n->in[0] = all;
            if (i > 0) n->n_out = 0;
            if (i > 0) continue;
            if (j == 0) n->in[1] = s->w, n->out[0] = dx;
            if (j == 1) n->out[0] = wide_param(g, s, 1, ROLE_DPARAM, "d.");
            if (j == 2) n->out[0] = wide_param(g, s, 2, ROLE_DPARAM, "d.");
        }
    }
    return graph_err(g);
}

/* Gradients that can be made in place inside one value: made here, and not views of something else.
 */
static bool may_lie_inside(const Graph *g, Value v)
{
    const int maker = graph_maker(g, v);
    if (maker == NO_NODE || info_of(g, v)->role != ROLE_LOCAL) return false;
    const OpId op = g->node[maker].op;
    if (op == OP_heads || op == OP_merge) return may_lie_inside(g, g->node[maker].in[0]);
    return op_info(op)->class != CLASS_VIEW && op != OP_wait;
}

static Err fuse_siblings(Graph *g, bool *found)
{
    Siblings s;
    for (int first = 0; first < g->n_nodes; first++) {
        if (!find_siblings(g, first, &s)) continue;
        Value dy[MAX_SIBLINGS], term[MAX_SIBLINGS], dx = NO_VALUE;
        int dead[MAX_SIBLINGS], n_dead = 0, n_terms = 0;
        bool fits = true, back = upstream(g, &s, 0) != NO_VALUE;
        for (int i = 0; i < s.n && back; i++) {
            dy[i] = upstream(g, &s, i);
            fits = fits && dy[i] != NO_VALUE && may_lie_inside(g, dy[i]);
            const int product = fits ? reader_of(g, OP_linear_dx, dy[i]) : NO_NODE;
            if (product != NO_NODE) term[n_terms++] = g->node[product].out[0];
        }
        if (!fits || (n_terms && n_terms != s.n)) continue;
        if (n_terms && !collapse(g, term, n_terms, dead, &n_dead)) continue;
        if (n_terms) dx = term[0];
        TRY(join_forward(g, &s));
        if (back) TRY(join_backward(g, &s, dy, dx));
        for (int i = 0; i < n_dead; i++) g->node[dead[i]].n_out = 0;
        *found = true;
        return graph_tidy(g);
    }
    return OK;
}

/* What a may be for a product to add to it: made here, read by nobody else, in its own bytes. */
static bool may_be_added_to(const Graph *g, Value a)
{
    const int maker = graph_maker(g, a);
    return maker != NO_NODE && info_of(g, a)->role == ROLE_LOCAL && graph_readers(g, a) == 1 &&
           op_info(g->node[maker].op)->class != CLASS_VIEW && g->node[maker].op != OP_wait;
}

static Err fuse_sum(Graph *g, bool *found)
{
    for (int i = 0; i < g->n_nodes; i++) {
        Node *n = &g->node[i];
        for (int side = 0; n->op == OP_add && n->n_out && side < 2; side++) {
            const Value a = n->in[1 - side], b = n->in[side];
            const int maker = graph_maker(g, b);
            if (maker == NO_NODE || a == b || graph_readers(g, b) != 1) continue;
            Node *product = &g->node[maker];
            if (product->op != OP_linear_dx || product->n_in != 2 || product->chunk != n->chunk)
                continue;
            if (!may_be_added_to(g, a)) continue;
            const Value in[] = {product->in[0], product->in[1], a};
            n->op = OP_linear_dx;
            n->attr = product->attr;
            n->keep[0] = SLOT_ONE;
            product->n_out = 0;
            TRY(ARENA_NEW(g->arena, 3, &n->in));
            memcpy(n->in, in, sizeof in);
            n->n_in = 3;
            *found = true;
            return graph_tidy(g);
        }
    }
    return OK;
}

static const struct {
    const char *name;
    Err (*rewrite)(Graph *g, bool *found);
} pattern[] = {
    {"siblings", fuse_siblings},
    {"sum into product", fuse_sum},
};

Err fuse(Graph *g)
{
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        for (bool found = true; found;) {
            found = false;
            TRY(pattern[i].rewrite(g, &found));
        }
    return graph_check(g);
}
