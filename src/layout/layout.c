/* layout.c -- construction, checks, comparison and printing of layouts. Their meaning is in
 * holding.c. */
#include "layout/layout.h"

#include "layout/holding.h"

Layout layout_replicate(int view) { return (Layout){.view = (uint8_t)view}; }

static Layout add_cut(Layout l, Cut c)
{
    MUST(l.n_cuts < MAX_CUTS, "a layout has at most %d cuts", MAX_CUTS);
    l.cut[l.n_cuts++] = c;
    return l;
}

Layout layout_cut(Layout l, int dim, unsigned axes, int64_t grain)
{
    return add_cut(l, (Cut){.dim = (int8_t)dim, .axes = (uint8_t)axes, .grain = grain});
}

Layout layout_cut_map(Layout l, int dim, unsigned axes, const SpanMap *map)
{
    return add_cut(l, (Cut){.dim = (int8_t)dim, .axes = (uint8_t)axes, .grain = 1, .map = map});
}

Layout layout_cut_read(Layout l, int dim, unsigned axes, int64_t group)
{
    return add_cut(l, (Cut){.dim = (int8_t)dim, .axes = (uint8_t)axes, .grain = 1, .group = group});
}

Layout layout_partial(Layout l, unsigned axes)
{
    l.partial = (uint8_t)(l.partial | axes);
    return l;
}

/* All checks of a cut that do not need the spans themselves. `used`: axes of earlier cuts. */
static Err cut_check(const Layout *l, int i, const Mesh *m, const Shape *s, unsigned used,
                     const char *name)
{
    const Cut *c = &l->cut[i];
    if (c->dim != DIM_FLAT && (c->dim < 0 || c->dim >= s->ndim))
        return err_fail(ERR_CHECK, "%s: cut %d is of dim %d; the tensor has %d", name, i, c->dim,
                        s->ndim);
    if (c->dim == DIM_FLAT && s->ndim == 0)
        return err_fail(ERR_CHECK, "%s: a scalar cannot be cut; leave it replicate", name);
    if (!c->axes || (c->axes & ~mesh_all_axes(m, l->view)))
        return err_fail(ERR_CHECK, "%s: cut %d is over axes 0x%x; the view has 0x%x", name, i,
                        c->axes, mesh_all_axes(m, l->view));
    if ((c->axes & used) && !(c->map && c->dim == DIM_FLAT))
        return err_fail(ERR_CHECK, "%s: cut %d uses an axis that an earlier cut used (0x%x)", name,
                        i, c->axes & used);
    if (c->axes & l->partial)
        return err_fail(ERR_CHECK, "%s: an axis is both cut and partial (0x%x)", name,
                        c->axes & l->partial);
    if (!c->map && c->grain < 1)
        return err_fail(ERR_CHECK, "%s: cut %d has a grain of %lld; the least is 1", name, i,
                        (long long)c->grain);
    if (c->group < 0 || (c->group && (c->map || c->dim == DIM_FLAT || c->grain != 1)))
        return err_fail(ERR_CHECK, "%s: cut %d is by groups of %lld; they cut a dim, without a map",
                        name, i, (long long)c->group);
    for (int j = 0; j < i; j++) {
        if (l->cut[j].dim == DIM_FLAT && c->dim != DIM_FLAT)
            return err_fail(ERR_CHECK, "%s: cut %d of dim %d follows a flat cut; put it before",
                            name, i, c->dim);
        if (l->cut[j].dim == c->dim && c->map)
            return err_fail(ERR_CHECK,
                            "%s: the span map of cut %d is not the first cut of its dim; make one "
                            "map over the axes of both",
                            name, i);
    }
    return OK;
}

static Err map_check(const Cut *c, int parts, const Shape *s, const char *name)
{
    if (c->map->n_parts != parts)
        return err_fail(ERR_CHECK, "%s: a span map of %d parts over axes of %d ranks", name,
                        c->map->n_parts, parts);
    if (c->dim != DIM_FLAT && c->map->extent != s->n[c->dim])
        return err_fail(ERR_CHECK, "%s: a span map of %lld elements on dim %d, which has %lld",
                        name, (long long)c->map->extent, c->dim, (long long)s->n[c->dim]);
    return OK;
}

/* Checks that the parts of a flat map that share one remainder tile it. Walks one representative
 * rank per remainder: the one at part 0 of the axes that are new in this cut. */
static Err flat_map_check(const Layout *l, int i, const Mesh *m, const Shape *s, unsigned used,
                          const char *name, Arena *temp)
{
    const Cut *c = &l->cut[i];
    const unsigned fresh = c->axes & ~used;
    const int n = mesh_parts(m, l->view, fresh);
    Layout before = *l;
    int *part;
    bool copies = false;
    before.n_cuts = (uint8_t)i;
    TRY(ARENA_NEW(temp, n, &part));
    for (int rank = 0; rank < m->world; rank++) {
        if (mesh_part(m, l->view, mesh_all_axes(m, l->view) & ~used, rank) != 0) continue;
        const Holding h = holding_of(&before, m, s, rank);
        for (int p = 0; p < n; p++)
            part[p] = mesh_part(m, l->view, c->axes, mesh_move(m, l->view, fresh, p, rank));
        TRY(spans_tile(c->map, part, n, holding_count(&h), temp, &copies));
        if (copies)
            return err_fail(ERR_CHECK,
                            "%s: the flat span map gives rank %d's elements twice; copies "
                            "come from cuts of dims",
                            name, rank);
    }
    return OK;
}

Err layout_check(const Layout *l, const Mesh *m, const Shape *s, const char *name, Arena *temp)
{
    unsigned used = 0;
    if (l->view >= m->n_views)
        return err_fail(ERR_CHECK, "%s: view %d; the mesh has %d", name, l->view, m->n_views);
    if (l->n_cuts > MAX_CUTS)
        return err_fail(ERR_CHECK, "%s: %d cuts; there are at most %d", name, l->n_cuts, MAX_CUTS);
    if (l->partial & ~mesh_all_axes(m, l->view))
        return err_fail(ERR_CHECK, "%s: partial over axes 0x%x; the view has 0x%x", name,
                        l->partial, mesh_all_axes(m, l->view));
    for (int i = 0; i < l->n_cuts; i++) {
        const Cut *c = &l->cut[i];
        TRY(cut_check(l, i, m, s, used, name));
        if (c->map) TRY(map_check(c, mesh_parts(m, l->view, c->axes), s, name));
        if (c->map && c->dim == DIM_FLAT) {
            const size_t mark = arena_mark(temp);
            const Err err = flat_map_check(l, i, m, s, used, name, temp);
            arena_rewind(temp, mark);
            TRY(err);
        }
        used |= c->axes;
    }
    return OK;
}

/* A map of one part may still reorder; then it is not the identity and stays. */
static bool map_is_identity(const SpanMap *map)
{
    int64_t at = 0;
    for (int i = 0; i < map->first[1]; i++) {
        if (map->span[i].lo != at || map->span[i].step != 1) return false;
        at = map->span[i].hi;
    }
    return true;
}

Layout layout_simplify(const Layout *l, const Mesh *m)
{
    Layout out = layout_replicate(l->view);
    unsigned ones = 0;
    for (int axis = 0; axis < m->view[l->view].n_axes; axis++)
        if (m->view[l->view].size[axis] == 1) ones |= 1u << axis;
    for (int i = 0; i < l->n_cuts; i++) {
        Cut c = l->cut[i];
        const unsigned axes = c.axes & ~ones;
        if (!axes && (!c.map || map_is_identity(c.map))) continue;
        if (axes) c.axes = (uint8_t)axes;
        out = add_cut(out, c);
    }
    return layout_partial(out, l->partial & ~ones);
}

bool layout_equal(const Layout *a, const Layout *b)
{
    if (a->view != b->view || a->partial != b->partial || a->n_cuts != b->n_cuts) return false;
    for (int i = 0; i < a->n_cuts; i++) {
        const Cut *x = &a->cut[i], *y = &b->cut[i];
        if (x->dim != y->dim || x->axes != y->axes || x->grain != y->grain || x->group != y->group)
            return false;
        if (!spans_equal(x->map, y->map)) return false;
    }
    return true;
}

bool layout_is_replicate(const Layout *l) { return l->n_cuts == 0 && l->partial == 0; }

unsigned layout_replicate_axes(const Layout *l, const Mesh *m)
{
    unsigned axes = mesh_all_axes(m, l->view) & ~(mesh_axes(m, l->view, "pp") | l->partial);
    for (int i = 0; i < l->n_cuts; i++) axes &= ~(unsigned)l->cut[i].axes;
    return axes;
}

bool cut_has_copies(const Cut *c)
{
    /* The parts of a flat map are of different remainders, so its flag is meaningless here. */
    return c->dim != DIM_FLAT && (c->group > 0 || (c->map && c->map->copies));
}

bool layout_has_copies(const Layout *l)
{
    for (int i = 0; i < l->n_cuts; i++)
        if (cut_has_copies(&l->cut[i])) return true;
    return false;
}

static void cut_text(Text *t, const Cut *c)
{
    if (c->dim == DIM_FLAT)
        text_add(t, "shard(flat");
    else
        text_add(t, "shard(%d", c->dim);
    if (c->map)
        text_add(t, " by %d spans%s", c->map->first[c->map->n_parts],
                 c->map->copies && c->dim != DIM_FLAT ? " with copies" : "");
    else if (c->group)
        text_add(t, " by groups of %lld with copies", (long long)c->group);
    else if (c->grain != 1)
        text_add(t, " by %lld", (long long)c->grain);
    text_add(t, ") on ");
}

void layout_text(Text *t, const Layout *l, const Mesh *m)
{
    if (layout_is_replicate(l)) text_add(t, "replicate");
    for (int i = 0; i < l->n_cuts; i++) {
        if (i > 0) text_add(t, ", ");
        cut_text(t, &l->cut[i]);
        mesh_axes_text(t, m, l->view, l->cut[i].axes);
    }
    if (l->partial) {
        text_add(t, l->n_cuts ? ", partial on " : "partial on ");
        mesh_axes_text(t, m, l->view, l->partial);
    }
}
