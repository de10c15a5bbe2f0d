/* homes.c -- the rank's part of each pack. */
#include "schedule/link/link_parts.h"

static Shape param_shape(const Param *p)
{
    Shape s = {.ndim = p->info.ndim};
    for (int i = 0; i < s.ndim; i++) s.n[i] = p->info.n[i];
    return s;
}

/* Lists the parameters of a pack, in its order. */
static Err list_params(Linker *k, const Pack *pack, HomeParam **out)
{
    const Model *m = k->lp->model;
    TRY(ARENA_NEW(k->arena, pack->n_params, out));
    for (int i = 0; i < pack->n_params; i++) {
        const Param *p = &m->param[pack->param[i]];
        (*out)[i] =
            (HomeParam){p->name, param_shape(p),
                        k->in->use ? k->in->use[pack->param[i]] : layout_replicate(p->info.view)};
    }
    return OK;
}

static void place_params(Linker *k, int pack)
{
    LinkedProgram *lp = k->lp;
    const Pack *p = &lp->model->pack[pack];
    const int64_t *at = lp->pack[pack].mine.pack_at;
    for (int i = 0; pack_on_stage(k, pack) && i < p->n_params; i++) {
        lp->param_at[p->param[i]] = at[i];
        lp->param_count[p->param[i]] = at[i + 1] - at[i];
    }
}

/* Counts the elements of the unit that are in packs of other units. */
static Err count_tied(Linker *k, int unit)
{
    LinkedProgram *lp = k->lp;
    const Unit *u = &lp->model->unit[unit];
    int other = -1;
    lp->unit[unit].stage = schedule_stage_of(k->s, unit);
    for (int i = 0; on_stage(k, unit) && i < u->n_params; i++) {
        const Param *p = param_of(lp, unit, i);
        if (p->holder[0] == unit) continue;
        if (other >= 0 && other != p->pack)
            return err_fail(ERR_CHECK,
                            "unit %s holds parameters of packs %d and %d, of %s and %s; besides "
                            "its own it may hold those of one pack",
                            u->name, other, p->pack,
                            lp->model->unit[lp->model->pack[other].unit].name,
                            lp->model->unit[p->holder[0]].name);
        other = p->pack;
        lp->unit[unit].tied_count += lp->param_count[u->param[i]];
    }
    return OK;
}

/* Finds the spans of the home that the rank counts in the norm. Ranks along data axes with the
 * same home have the same gradient there, and each counts it for itself. Copies of a parameter of
 * another stage are counted there. */
static Err find_owned(Linker *k, int pack)
{
    PackMemory *at = &k->lp->pack[pack];
    const LinkedProgram *lp = k->lp;
    const unsigned same = mesh_data_axes(lp->mesh, at->home.view) & ~at->home.shard;
    const int first = mesh_move(lp->mesh, at->home.view, same, 0, lp->rank);
    const HomePiece *piece;
    Span *span;
    int n;
    TRY(home_owned(&at->home, &at->mine, first, k->arena, &piece, &n));
    TRY(ARENA_NEW(k->arena, n + 1, &span));
    for (int i = 0; i < n; i++) {
        const int64_t lo = piece[i].at, hi = lo + piece[i].hi - piece[i].lo;
        const int param = lp->model->pack[pack].param[piece[i].param];
        if (lp->model->param[param].copy_of >= 0) continue;
        if (at->n_owned > 0 && span[at->n_owned - 1].hi == lo)
            span[at->n_owned - 1].hi = hi;
        else
            span[at->n_owned++] = (Span){lo, hi, 1};
    }
    at->owned = span;
    return OK;
}

static Err check_place(const Linker *k, int pack)
{
    if (!k->in->switches || k->in->switches[pack].place == PLACE_DEVICE) return OK;
    return err_fail(
        ERR_CONFIG,
        "pack %d, of unit %s, is placed on the host: not supported yet; place it on the "
        "device",
        pack, k->lp->model->unit[k->lp->model->pack[pack].unit].name);
}

static bool is_copy(const Model *m, int param) { return m->param[param].copy_of >= 0; }

/* True if the packs have parameters of equal shapes and layouts, are sharded alike, and are both on
 * the stage or both not: then the rank's parts of them are equal. */
static bool are_alike(const Linker *k, int pack, const HomeParam *param, unsigned shard, int other)
{
    const Model *m = k->lp->model;
    const Pack *a = &m->pack[pack], *b = &m->pack[other];
    const Home *h = &k->lp->pack[other].home;
    if (a->n_params != b->n_params || a->view != b->view || h->shard != shard ||
        pack_on_stage(k, pack) != pack_on_stage(k, other))
        return false;
    for (int i = 0; i < a->n_params; i++) {
        const Shape *x = &param[i].shape, *y = &h->param[i].shape;
        bool same = x->ndim == y->ndim && is_copy(m, a->param[i]) == is_copy(m, b->param[i]);
        for (int d = 0; d < x->ndim && same; d++) same = x->n[d] == y->n[d];
        if (!same || !layout_equal(&param[i].use, &h->param[i].use)) return false;
    }
    return true;
}

/* Takes the rank's part from a pack before it that is alike, as those of most layers are; false:
 * none of the last ones is. */
static bool take_home(Linker *k, int pack, const HomeParam *param, unsigned shard)
{
    enum { LOOKS_BACK = 16 };
    PackMemory *at = &k->lp->pack[pack];
    for (int other = pack - 1; other >= 0 && other >= pack - LOOKS_BACK; other--) {
        if (!are_alike(k, pack, param, shard, other)) continue;
        const int stage = at->stage;
        *at = k->lp->pack[other];
        at->stage = stage;
        at->home.param = param;
        return true;
    }
    return false;
}

static Err pack_home(Linker *k, int pack)
{
    LinkedProgram *lp = k->lp;
    PackMemory *at = &lp->pack[pack];
    const Pack *of = &lp->model->pack[pack];
    const bool sharded = k->in->switches && k->in->switches[pack].sharded;
    const unsigned shard = sharded ? mesh_shard_axes(lp->mesh, of->view) : 0;
    HomeParam *param;
    TRY(check_place(k, pack));
    at->stage = schedule_stage_of(k->s, of->unit);
    TRY(list_params(k, of, &param));
    if (take_home(k, pack, param, shard)) return OK;
    TRY(home_init(&at->home, lp->mesh, shard, lp->block, param, of->n_params));
    MUST(at->home.view == of->view, "pack %d of view %d has layouts of view %d", pack, of->view,
         at->home.view);
    TRY(home_rank(&at->home, lp->rank, k->arena, &at->mine)); /* the same on every stage */
    TRY(home_counts(&at->home, &at->mine, k->arena, &at->counts));
    TRY(mesh_group(lp->mesh, at->home.view, at->home.shard, lp->rank, k->arena, &at->group));
    at->me = mesh_part(lp->mesh, at->home.view, at->home.shard, lp->rank);
    if (pack_on_stage(k, pack)) return find_owned(k, pack);
    int64_t *nowhere; /* every parameter begins and ends at 0 */
    TRY(ARENA_NEW(k->arena, of->n_params + 1, &nowhere));
    at->mine = (HomeRank){.pack_at = nowhere};
    return OK;
}

/* Numbers the rows of the stage's packs; one more is for all others. */
static Err number_rows(Linker *k)
{
    const int n = k->lp->model->n_packs;
    TRY(ARENA_NEW(k->arena, n, &k->pack_row));
    for (int p = 0; p < n; p++)
        if (pack_on_stage(k, p)) k->pack_row[p] = (int32_t)k->pack_rows++;
    for (int p = 0; p < n; p++)
        if (!pack_on_stage(k, p)) k->pack_row[p] = (int32_t)k->pack_rows;
    k->pack_rows++;
    return OK;
}

/* Checks that a program reads as many elements of each parameter as the rank holds in use. */
static Err check_sizes(const Linker *k, int unit)
{
    const LinkedProgram *lp = k->lp;
    const Program *p = programs_of_unit(&lp->programs, unit);
    for (int32_t i = 0; i < p->n_tensors; i++) {
        const ProgTensor *t = &p->tensor[i];
        if (t->at[SPLIT].region != REGION_PARAM || t->view_of != i) continue;
        int64_t reads = 1, held = 0;
        for (int d = 0; d < t->ndim; d++) reads *= t->dim[d].cap;
        for (int at = t->index; at < t->index + t->span; at++)
            held += lp->param_count[lp->model->unit[unit].param[at]];
        if (reads != held)
            return err_fail(ERR_CHECK,
                            "unit %s: its program reads %lld elements of %s, and the rank holds "
                            "%lld in use",
                            lp->model->unit[unit].name, (long long)reads, t->name, (long long)held);
    }
    return OK;
}

Err link_homes(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const Model *m = lp->model;
    TRY(ARENA_NEW(k->arena, m->n_units, &lp->unit));
    TRY(ARENA_NEW(k->arena, m->n_packs, &lp->pack));
    TRY(ARENA_NEW(k->arena, m->n_params, &lp->param_at));
    TRY(ARENA_NEW(k->arena, m->n_params, &lp->param_count));
    for (int p = 0; p < m->n_packs; p++) TRY(pack_home(k, p));
    for (int p = 0; p < m->n_packs; p++) place_params(k, p);
    for (int u = 0; u < m->n_units; u++) {
        TRY(count_tied(k, u));
        if (on_stage(k, u)) TRY(check_sizes(k, u));
    }
    return number_rows(k);
}
