/* reshard.c -- the kind of a reshard, derived from the two layouts alone, so all ranks agree on it.
 *
 * Cuts that both layouts begin with, dim by dim, stay: nothing crosses their axes. The kind follows
 * from the other cuts:
 *
 *     from is cut more    to is cut more    partial    kind
 *     -                   -                 -          none
 *     -                   yes               -          local
 *     yes                 on other axes     -          all-gather of a slice
 *     yes                 on the same axes  -          all-to-all
 *     -                   not on partial    yes        all-reduce of a slice
 *     -                   on all partial    yes        reduce-scatter
 *
 * All other cases are exchanges, as is every reshard with copies to choose from or to add. */
#include "layout/reshard.h"

#include <string.h>

/* True for a nominal cut: each part of the map is all of the dim. A flat map that uses its axes
 * again needs one (home.h); otherwise its axes are replicate. */
static bool is_nominal(const Cut *c)
{
    const SpanMap *map = c->map;
    if (!map || c->dim == DIM_FLAT) return false;
    for (int p = 0; p < map->n_parts; p++) {
        if (map->first[p + 1] - map->first[p] != (map->extent > 0)) return false;
        if (map->extent == 0) continue;
        const Span s = map->span[map->first[p]];
        if (s.lo != 0 || s.hi != map->extent || s.step != 1) return false;
    }
    return true;
}

/* The n-th cut of a dim, or NULL. Nominal cuts count only if copies are summed. */
static const Cut *nth_cut(const Sharding *p, int dim, int n)
{
    for (int i = 0; i < p->layout.n_cuts; i++) {
        const Cut *c = &p->layout.cut[i];
        if (c->dim == dim && (p->sum_copies || !is_nominal(c)) && n-- == 0) return c;
    }
    return NULL;
}

/* `whole`: both cut the same window, all of a dim. Then different grains may give the same
 * parts. */
static bool cut_same(const Reshard *r, const Cut *a, const Cut *b, bool whole)
{
    if (a->axes != b->axes || !a->map != !b->map || a->group != b->group) return false;
    if (a->map) return spans_equal(a->map, b->map);
    if (a->grain == b->grain) return true;
    const int parts = mesh_parts(r->from.mesh, r->from.layout.view, a->axes);
    for (int p = 0; whole && p < parts; p++) {
        const Span x = even_part(r->shape.n[a->dim], a->grain, parts, p);
        const Span y = even_part(r->shape.n[a->dim], b->grain, parts, p);
        if (x.lo != y.lo || x.hi != y.hi) return false;
    }
    return whole;
}

/* Axes of the cuts of this dim that both begin with. *all: neither has more. */
static unsigned common_of_dim(const Reshard *r, int dim, bool *all)
{
    unsigned axes = 0;
    for (int n = 0;; n++) {
        const Cut *from = nth_cut(&r->from, dim, n), *to = nth_cut(&r->to, dim, n);
        if (!from && !to) return axes;
        const bool whole = n == 0 && dim != DIM_FLAT;
        const bool sums = from && r->from.sum_copies && cut_has_copies(from);
        if (!from || !to || sums || !cut_same(r, from, to, whole)) {
            *all = false;
            return axes;
        }
        axes |= from->axes;
    }
}

static unsigned common_axes(const Reshard *r, bool *all)
{
    unsigned axes = 0;
    *all = true;
    for (int d = 0; d < r->shape.ndim; d++) axes |= common_of_dim(r, d, all);
    if (*all) axes |= common_of_dim(r, DIM_FLAT, all); /* the same cut of the same remainder */
    return axes;
}

/* Axes of cuts, without those of size 1; nominal cuts only if they count. */
static unsigned cut_axes(const Sharding *p, bool nominal_too)
{
    const View *v = &p->mesh->view[p->layout.view];
    unsigned axes = 0, out = 0;
    for (int i = 0; i < p->layout.n_cuts; i++) {
        const Cut *c = &p->layout.cut[i];
        axes |= c->axes;
        if (!nominal_too && is_nominal(c)) out |= c->axes;
    }
    for (int i = 0; i < v->n_axes; i++)
        if (v->size[i] == 1) out |= 1u << i;
    return axes & ~out;
}

/* Simplifies the layout. On a mesh with one stage, that stage is all stages. */
static Sharding simple_place(const Sharding *p)
{
    Sharding simple = *p;
    simple.layout = layout_simplify(&p->layout, p->mesh);
    simple.sum_copies = p->sum_copies && layout_has_copies(&simple.layout);
    const unsigned pp = mesh_axes(p->mesh, p->layout.view, "pp");
    if (mesh_parts(p->mesh, p->layout.view, pp) == 1) simple.stage = ALL_STAGES;
    return simple;
}

/* True if two holders that differ along `axes` may hold the same element. */
static bool copies_along(const Layout *l, unsigned axes)
{
    for (int i = 0; i < l->n_cuts; i++)
        if (cut_has_copies(&l->cut[i]) && (l->cut[i].axes & axes)) return true;
    return false;
}

static bool same_box(const Sharding *a, const Sharding *b)
{
    const View *x = &a->mesh->view[a->layout.view], *y = &b->mesh->view[b->layout.view];
    return x->n_axes == y->n_axes &&
           memcmp(x->size, y->size, sizeof *x->size * (size_t)x->n_axes) == 0;
}

/* True if every rank of `to` holds the whole tensor already. */
static bool is_everywhere(const Reshard *r)
{
    const Sharding *from = &r->from;
    return layout_is_replicate(&from->layout) && r->to.mesh->world <= from->mesh->world &&
           from->stage == ALL_STAGES;
}

static ReshardKind kind_of(const Reshard *r, unsigned from_more, unsigned to_more, bool same_cuts)
{
    if (is_everywhere(r)) return layout_is_replicate(&r->to.layout) ? RESHARD_NONE : RESHARD_LOCAL;
    if (!r->one_mesh || r->from.stage != r->to.stage || r->has_copies) return RESHARD_EXCHANGE;
    if (r->summed && from_more) return RESHARD_EXCHANGE;
    if (r->summed) {
        if (!(to_more & r->summed)) return RESHARD_ALL_REDUCE;
        return r->summed & ~to_more ? RESHARD_EXCHANGE : RESHARD_REDUCE_SCATTER;
    }
    if (from_more) return from_more & to_more ? RESHARD_ALL_TO_ALL : RESHARD_ALL_GATHER;
    return same_cuts ? RESHARD_NONE : RESHARD_LOCAL;
}

static Err partial_check(const Reshard *r, const char *name)
{
    const unsigned from = r->from.layout.partial, to = r->to.layout.partial;
    if (!to || (r->one_mesh && !(to & ~from))) return OK;
    return err_fail(ERR_CHECK,
                    "%s: a reshard to partial over axes 0x%x from partial over 0x%x%s; only sums "
                    "that are still open can stay open, on one mesh",
                    name, to, from, r->one_mesh ? "" : " on another mesh");
}

/* ERR_CHECK unless the cuts with copies are the same, where copies are summands on both sides. */
static Err copies_check(const Reshard *r, const Sharding *from, unsigned common, const char *name)
{
    if (from->sum_copies && !copies_along(&r->from.layout, ~common) &&
        !copies_along(&r->to.layout, ~common))
        return OK;
    return err_fail(ERR_CHECK,
                    "%s: a reshard to copies that are summands, from others; add them up first",
                    name);
}

Err reshard_plan(const Sharding *from, const Sharding *to, const Shape *shape, const char *name,
                 Reshard *out)
{
    Reshard r = {.shape = *shape, .from = simple_place(from), .to = simple_place(to)};
    bool same_cuts = false;
    const bool copies_stay = r.to.sum_copies;
    r.one_mesh = same_box(&r.from, &r.to);
    TRY(partial_check(&r, name));
    if (copies_stay) r.from.sum_copies = r.to.sum_copies = false;

    const unsigned common = r.one_mesh ? common_axes(&r, &same_cuts) : 0;
    if (copies_stay) TRY(copies_check(&r, from, common, name));
    const unsigned from_more = cut_axes(&r.from, !r.one_mesh || r.from.sum_copies) & ~common;
    const unsigned to_more = cut_axes(&r.to, false) & ~common;
    r.summed = r.from.layout.partial & ~(unsigned)r.to.layout.partial;
    r.varies = from_more | r.summed;
    r.has_copies = copies_along(&r.from.layout, from_more);
    r.kind = kind_of(&r, from_more, to_more, same_cuts);
    const bool grouped = r.kind >= RESHARD_ALL_GATHER && r.kind <= RESHARD_ALL_TO_ALL;
    r.axes = grouped ? r.varies : 0;
    *out = r;
    return OK;
}

bool reshard_by_groups(Reshard *r)
{
    if (r->kind != RESHARD_EXCHANGE || !r->one_mesh || r->from.stage != r->to.stage || r->summed)
        return false;
    r->kind = RESHARD_ALL_TO_ALL;
    r->axes = r->varies;
    return true;
}

void reshard_text(Text *t, const Reshard *r)
{
    static const char *const word[N_RESHARD_KINDS] = {
        "none", "local", "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "exchange"};
    text_add(t, "%s", word[r->kind]);
    if (!r->axes) return;
    text_add(t, " on ");
    mesh_axes_text(t, r->from.mesh, r->from.layout.view, r->axes);
}
