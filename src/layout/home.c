/* home.c -- a pack and its shards: the layouts of its parameters, and the home of a rank. */
#include "layout/home.h"

static int64_t use_count(const Home *h, int param, int rank)
{
    const HomeParam *p = &h->param[param];
    const Holding held = holding_of(&p->use, h->mesh, &p->shape, rank);
    return holding_count(&held);
}

static unsigned cut_axes(const Layout *l)
{
    unsigned axes = 0;
    for (int i = 0; i < l->n_cuts; i++) axes |= l->cut[i].axes;
    return axes;
}

static Err param_check(const Home *h, const HomeParam *p)
{
    const unsigned stays = h->shard | mesh_axes(h->mesh, h->view, "pp");
    if (p->use.view != h->view)
        return err_fail(ERR_CHECK, "%s: its use is of view %d, others of the pack are of %d",
                        p->name, p->use.view, h->view);
    if (p->use.partial || (cut_axes(&p->use) & stays))
        return err_fail(ERR_CHECK,
                        "%s: its use is partial (0x%x), or cut over axes (0x%x) of which 0x%x are "
                        "stages or shards of the pack",
                        p->name, p->use.partial, cut_axes(&p->use), cut_axes(&p->use) & stays);
    if (p->shape.ndim == 0)
        return err_fail(ERR_CHECK, "%s: a scalar has no home in a pack; give it one dim of 1",
                        p->name);
    for (int i = 0; i < p->use.n_cuts; i++)
        if (p->use.cut[i].dim == DIM_FLAT)
            return err_fail(ERR_CHECK, "%s: its use has a flat cut; flat is for its home", p->name);
    if (p->use.n_cuts + 2 > MAX_CUTS)
        return err_fail(ERR_CHECK, "%s: its use has %d cuts; its home has room for %d", p->name,
                        p->use.n_cuts, MAX_CUTS - 2);
    return OK;
}

/* True if two ranks hold equally many elements of each parameter. */
static bool packs_agree(const Home *h, int rank, int other)
{
    for (int i = 0; i < h->n; i++)
        if (use_count(h, i, rank) != use_count(h, i, other)) return false;
    return true;
}

Err home_init(Home *h, const Mesh *m, unsigned shard, int64_t grain, const HomeParam *param, int n)
{
    Home made = {.mesh = m, .shard = shard, .grain = grain, .n = n, .param = param};
    made.view = n > 0 ? param[0].use.view : VIEW_DENSE;
    if (grain < 1 || (shard & ~mesh_all_axes(m, made.view)))
        return err_fail(ERR_CHECK,
                        "a pack cut over axes 0x%x by %lld; the view has 0x%x, and a "
                        "grain is at least 1",
                        shard, (long long)grain, mesh_all_axes(m, made.view));
    for (int i = 0; i < n; i++) {
        TRY(param_check(&made, &param[i]));
        made.model |= cut_axes(&param[i].use);
    }
    const int packs = mesh_parts(m, made.view, made.model);
    for (int part = 1; part < packs && !made.vary; part++)
        if (!packs_agree(&made, 0, mesh_move(m, made.view, made.model, part, 0)))
            made.vary = made.model;
    *h = made;
    return OK;
}

/* The range of the pack that is the rank's home, given the pack's length. */
static Span shard_of(const Home *h, int64_t pack_count, int rank)
{
    return even_part(pack_count, h->grain, mesh_parts(h->mesh, h->view, h->shard),
                     mesh_part(h->mesh, h->view, h->shard, rank));
}

/* The range [lo, hi) of a parameter inside the shard. The parameter has `count` elements from
 * offset `at` of the pack on. */
static Span param_in(Span shard, int64_t at, int64_t count)
{
    const int64_t lo = shard.lo > at ? shard.lo - at : 0;
    const int64_t hi = shard.hi - at < count ? shard.hi - at : count;
    return (Span){lo, hi > lo ? hi : lo, 1};
}

/* Adds a nominal cut over the axes: every part holds all. It comes before the other cuts, on a dim
 * without a map, since a map is the first cut of its dim. */
static Err add_nominal(const Home *h, const HomeParam *p, unsigned axes, Arena *a, Layout *l)
{
    const int parts = mesh_parts(h->mesh, h->view, axes);
    int32_t *first;
    Span *span;
    bool mapped[MAX_DIMS] = {false};
    int dim = 0;
    for (int i = 0; i < l->n_cuts; i++)
        if (l->cut[i].map) mapped[l->cut[i].dim] = true;
    while (dim < p->shape.ndim && mapped[dim]) dim++;
    if (dim == p->shape.ndim)
        return err_fail(ERR_CHECK,
                        "%s: every dim is cut by a span map, so that its home cannot differ along "
                        "axes 0x%x; cut one of them evenly, or make the packs equal",
                        p->name, axes);
    TRY(ARENA_NEW(a, parts + 1, &first));
    TRY(ARENA_NEW(a, parts, &span));
    const int64_t n = p->shape.n[dim];
    for (int part = 0; part < parts; part++) {
        span[part] = (Span){0, n, 1};
        first[part + 1] = n > 0 ? part + 1 : 0;
    }
    const SpanMap *map;
    TRY(spans_map(a, n, parts, first, span, &map));
    Layout with = layout_cut_map(layout_replicate(l->view), dim, axes, map);
    for (int i = 0; i < l->n_cuts; i++) with.cut[with.n_cuts++] = l->cut[i];
    *l = with;
    return OK;
}

/* The range of a parameter in the pack of a rank. */
typedef struct {
    int64_t at, count, pack_count;
} InPack;

static InPack in_pack(const Home *h, int param, int rank)
{
    InPack p = {0};
    for (int i = 0; i < h->n; i++) {
        const int64_t count = use_count(h, i, rank);
        if (i == param) p = (InPack){p.pack_count, count, p.pack_count};
        p.pack_count += count;
    }
    return p;
}

/* The flat map: one part for each coordinate along the shard axes and along the axes where packs
 * differ. */
static Err flat_map(const Home *h, int param, Arena *a, const SpanMap **out)
{
    const unsigned axes = h->shard | h->vary;
    const int packs = mesh_parts(h->mesh, h->view, h->vary);
    const int parts = mesh_parts(h->mesh, h->view, axes);
    InPack *pack;
    int32_t *first;
    Span *span;
    int64_t extent = 0;
    TRY(ARENA_NEW(a, packs, &pack));
    TRY(ARENA_NEW(a, parts + 1, &first));
    TRY(ARENA_NEW(a, parts, &span));
    for (int i = 0; i < packs; i++) {
        pack[i] = in_pack(h, param, mesh_move(h->mesh, h->view, h->vary, i, 0));
        if (extent < pack[i].count) extent = pack[i].count;
    }
    for (int i = 0; i < parts; i++) {
        const int rank = mesh_move(h->mesh, h->view, axes, i, 0);
        const InPack *p = &pack[mesh_part(h->mesh, h->view, h->vary, rank)];
        const Span mine = param_in(shard_of(h, p->pack_count, rank), p->at, p->count);
        first[i + 1] = first[i];
        if (mine.lo < mine.hi) span[first[i + 1]++] = mine;
    }
    return spans_map(a, extent, parts, first, span, out);
}

Err home_layout(const Home *h, int param, Arena *a, Layout *out)
{
    const HomeParam *p = &h->param[param];
    Layout l = p->use;
    const SpanMap *map;
    if (mesh_parts(h->mesh, h->view, h->shard) > 1) {
        const unsigned unused = h->vary & ~cut_axes(&p->use);
        if (unused) TRY(add_nominal(h, p, unused, a, &l));
        TRY(flat_map(h, param, a, &map));
        l = layout_cut_map(l, DIM_FLAT, h->shard | h->vary, map);
    }
    *out = l;
    return OK;
}

Err home_rank(const Home *h, int rank, Arena *a, HomeRank *out)
{
    HomeRank r = {0};
    int64_t *at;
    HomePiece *piece;
    TRY(ARENA_NEW(a, h->n + 1, &at));
    TRY(ARENA_NEW(a, h->n, &piece));
    for (int i = 0; i < h->n; i++) at[i + 1] = at[i] + use_count(h, i, rank);
    r.pack_at = at;
    r.pack_count = at[h->n];
    r.shard = shard_of(h, r.pack_count, rank);
    r.piece = piece;
    for (int i = 0; i < h->n; i++) {
        const Span mine = param_in(r.shard, at[i], at[i + 1] - at[i]);
        if (mine.lo >= mine.hi) continue;
        piece[r.n_pieces++] = (HomePiece){i, mine.lo, mine.hi, at[i] + mine.lo - r.shard.lo};
    }
    *out = r;
    return OK;
}

Err home_counts(const Home *h, const HomeRank *of, Arena *a, const int64_t **count)
{
    const int n = mesh_parts(h->mesh, h->view, h->shard);
    int64_t *list;
    TRY(ARENA_NEW(a, n, &list));
    for (int i = 0; i < n; i++) {
        const Span s = even_part(of->pack_count, h->grain, n, i);
        list[i] = s.hi - s.lo;
    }
    *count = list;
    return OK;
}

HomeReduce home_reduce(const Home *h, int param, unsigned partial)
{
    const Layout *use = &h->param[param].use;
    HomeReduce r = {.scatter = partial & h->shard};
    MUST(!(partial & cut_axes(use)), "%s: a gradient that is cut and partial over axes 0x%x",
         h->param[param].name, partial & cut_axes(use));
    for (int i = 0; i < use->n_cuts; i++)
        if (use->cut[i].map && use->cut[i].map->copies) r.copies |= use->cut[i].axes;
    const unsigned data = mesh_data_axes(h->mesh, h->view);
    r.model = partial & ~(data | h->shard);
    r.data = partial & data & ~h->shard;
    return r;
}
