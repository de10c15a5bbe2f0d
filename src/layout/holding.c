/* holding.c -- the meaning of a layout for one rank.
 *
 * Each dim is a window of spans (spans.h), which a cut narrows. FLAT is one more window, over the
 * row-major elements of `kept`. So an index is translated dim by dim. */
#include "layout/holding.h"

static void row_major(const Shape *s, int64_t stride[MAX_DIMS])
{
    int64_t each = 1;
    for (int d = s->ndim - 1; d >= 0; d--) {
        stride[d] = each;
        each *= s->n[d];
    }
}

static HeldSpans held_cut(HeldSpans h, const Cut *c, int parts, int part)
{
    if (c->map) return held_map(c->map, part);
    return c->group ? held_read(h, c->group, parts, part) : held_even(h, c->grain, parts, part);
}

/* Updates the members that are derived from dim[]. */
static void holding_finish(Holding *h)
{
    row_major(&h->kept, h->stride);
    if (!h->is_flat) h->flat = held_all(shape_count(&h->kept));
}

Holding holding_all(const Shape *s)
{
    Holding h = {.global = *s, .kept = *s};
    for (int d = 0; d < s->ndim; d++) h.dim[d] = held_all(s->n[d]);
    holding_finish(&h);
    return h;
}

void holding_narrow(Holding *h, const Cut *c, int parts, int part)
{
    if (c->dim == DIM_FLAT) {
        h->flat = held_cut(h->flat, c, parts, part);
        h->is_flat = true;
        return;
    }
    h->dim[c->dim] = held_cut(h->dim[c->dim], c, parts, part);
    h->kept.n[c->dim] = h->dim[c->dim].count;
    holding_finish(h);
}

Holding holding_of(const Layout *l, const Mesh *m, const Shape *s, int rank)
{
    Holding h = holding_all(s);
    for (int i = 0; i < l->n_cuts; i++) {
        const unsigned axes = l->cut[i].axes;
        holding_narrow(&h, &l->cut[i], mesh_parts(m, l->view, axes),
                       mesh_part(m, l->view, axes, rank));
    }
    return h;
}

Shape holding_shape(const Holding *h) { return h->is_flat ? (Shape){1, {h->flat.count}} : h->kept; }

int64_t holding_count(const Holding *h) { return h->flat.count; }

int64_t holding_global(const Holding *h, int64_t at)
{
    int64_t left = held_at(&h->flat, at), global = 0;
    for (int d = 0; d < h->global.ndim; d++) {
        global = global * h->global.n[d] + held_at(&h->dim[d], left / h->stride[d]);
        left %= h->stride[d];
    }
    return global;
}

/* The row-major index in `kept` of a global element, or -1. */
static int64_t kept_find(const Holding *h, int64_t global)
{
    int64_t at = 0;
    for (int d = h->global.ndim - 1; d >= 0; d--) {
        const int64_t i = held_find(&h->dim[d], global % h->global.n[d]);
        if (i < 0) return -1;
        at += i * h->stride[d];
        global /= h->global.n[d];
    }
    return at;
}

int64_t holding_find(const Holding *h, int64_t global)
{
    const int64_t at = kept_find(h, global);
    return at < 0 ? -1 : held_find(&h->flat, at);
}

Box holding_bounds(const Holding *h)
{
    Box b = {.ndim = h->global.ndim};
    if (holding_count(h) == 0) return b; /* [0, 0) */
    for (int d = 0; d < b.ndim; d++) {
        HeldSpans held = h->dim[d];
        if (d == 0 && h->is_flat) { /* only the rows that the flat cut left */
            const Span flat = held_bounds(&h->flat);
            held.from += flat.lo / h->stride[0];
            held.count = (flat.hi - 1) / h->stride[0] - flat.lo / h->stride[0] + 1;
        }
        const Span s = held_bounds(&held);
        b.lo[d] = s.lo;
        b.hi[d] = s.hi;
    }
    return b;
}

/* True if a rank at this part of the cut may hold the element, as far as this cut decides. */
static bool part_holds(const Holding *before, const Cut *c, int parts, int part, int64_t global)
{
    Holding h = *before;
    holding_narrow(&h, c, parts, part);
    return holding_find(&h, global) >= 0;
}

int layout_owner(const Layout *l, const Mesh *m, const Shape *s, int rank, int64_t global)
{
    const unsigned stage = mesh_axes(m, l->view, "pp");
    Holding h = holding_all(s);
    unsigned used = 0;
    if (l->partial) return -1;
    int owner = mesh_move(m, l->view, mesh_all_axes(m, l->view) & ~stage, 0, rank);
    for (int i = 0; i < l->n_cuts; i++) {
        const Cut *c = &l->cut[i];
        const int parts = mesh_parts(m, l->view, c->axes);
        const unsigned fresh = c->axes & ~used;
        const int choices = mesh_parts(m, l->view, fresh);
        int choice = 0, part = 0;
        for (; choice < choices; choice++) { /* the first part that holds it */
            owner = mesh_move(m, l->view, fresh, choice, owner);
            part = mesh_part(m, l->view, c->axes, owner);
            if (part_holds(&h, c, parts, part, global)) break;
        }
        MUST(choice < choices, "cut %d leaves element %lld to nobody", i, (long long)global);
        holding_narrow(&h, c, parts, part);
        used |= c->axes;
    }
    return owner;
}
