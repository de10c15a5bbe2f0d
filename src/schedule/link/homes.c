/* homes.c -- the rank's part of each unit's pack. */
#include "schedule/link/link_parts.h"

static Shape param_shape(const Param *p)
{
    Shape s = {.ndim = p->info.ndim};
    for (int i = 0; i < s.ndim; i++) s.n[i] = p->info.n[i];
    return s;
}

/* Lists the parameters of the unit's pack, in its order. */
static Err list_params(Linker *k, int unit, HomeParam **out, int *n)
{
    const Unit *u = &k->lp->model->unit[unit];
    TRY(ARENA_NEW(k->arena, u->n_params + 1, out));
    *n = 0;
    for (int i = 0; i < u->n_params; i++) {
        const Param *p = param_of(k->lp, unit, i);
        if (p->holder[0] != unit) continue;
        k->pack_index[u->param[i]] = *n;
        (*out)[(*n)++] =
            (HomeParam){p->name, param_shape(p),
                        k->in->use ? k->in->use[u->param[i]] : layout_replicate(VIEW_DENSE)};
    }
    return OK;
}

static Err place_params(Linker *k, int unit)
{
    LinkedProgram *lp = k->lp;
    const Unit *u = &lp->model->unit[unit];
    UnitMemory *at = &lp->unit[unit];
    int owner = -1;
    for (int i = 0; on_stage(k, unit) && i < u->n_params; i++) {
        const Param *p = param_of(lp, unit, i);
        if (p->holder[0] == unit) {
            const int64_t *begin = &at->mine.pack_at[k->pack_index[u->param[i]]];
            lp->param_at[u->param[i]] = begin[0];
            lp->param_count[u->param[i]] = begin[1] - begin[0];
            continue;
        }
        if (owner >= 0 && owner != p->holder[0])
            return err_fail(ERR_CHECK,
                            "unit %s holds parameters of the packs of %s and %s; besides its "
                            "own it may hold those of one pack",
                            u->name, lp->model->unit[owner].name,
                            lp->model->unit[p->holder[0]].name);
        owner = p->holder[0];
        at->tied_count += lp->param_count[u->param[i]];
    }
    return OK;
}

int pack_param(const Linker *k, int unit, int i)
{
    const Unit *u = &k->lp->model->unit[unit];
    for (int n = 0; n < u->n_params; n++)
        if (param_of(k->lp, unit, n)->holder[0] == unit && k->pack_index[u->param[n]] == i)
            return u->param[n];
    MUST(false, "unit %s has no parameter %d in its pack", u->name, i);
    return -1;
}

/* Finds the spans of the home that the rank counts in the norm. Ranks along data axes with the
 * same home have the same gradient there, and each counts it for itself. Copies of a parameter of
 * another stage are counted there. */
static Err find_owned(Linker *k, int unit)
{
    UnitMemory *at = &k->lp->unit[unit];
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
        if (lp->model->param[pack_param(k, unit, piece[i].param)].copy_of >= 0) continue;
        if (at->n_owned > 0 && span[at->n_owned - 1].hi == lo)
            span[at->n_owned - 1].hi = hi;
        else
            span[at->n_owned++] = (Span){lo, hi, 1};
    }
    at->owned = span;
    return OK;
}

static Err unit_home(Linker *k, int unit)
{
    LinkedProgram *lp = k->lp;
    UnitMemory *at = &lp->unit[unit];
    const bool sharded = k->in->switches && k->in->switches[unit].sharded;
    HomeParam *param;
    int n;
    at->stage = schedule_stage_of(k->s, unit);
    TRY(list_params(k, unit, &param, &n));
    const int view = n > 0 ? param[0].use.view : VIEW_DENSE;
    const unsigned shard = sharded ? mesh_shard_axes(lp->mesh, view) : 0;
    TRY(home_init(&at->home, lp->mesh, shard, lp->block, param, n));
    TRY(home_rank(&at->home, lp->rank, k->arena, &at->mine)); /* the same on every stage */
    TRY(home_counts(&at->home, &at->mine, k->arena, &at->counts));
    TRY(mesh_group(lp->mesh, at->home.view, at->home.shard, lp->rank, k->arena, &at->group));
    at->me = mesh_part(lp->mesh, at->home.view, at->home.shard, lp->rank);
    if (on_stage(k, unit)) return find_owned(k, unit);
    int64_t *nowhere; /* every parameter begins and ends at 0 */
    TRY(ARENA_NEW(k->arena, n + 1, &nowhere));
    at->mine = (HomeRank){.pack_at = nowhere};
    return OK;
}

Err link_homes(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const Model *m = lp->model;
    TRY(ARENA_NEW(k->arena, m->n_units, &lp->unit));
    TRY(ARENA_NEW(k->arena, m->n_params, &lp->param_at));
    TRY(ARENA_NEW(k->arena, m->n_params, &lp->param_count));
    TRY(ARENA_NEW(k->arena, m->n_params, &k->pack_index));
    for (int u = 0; u < m->n_units; u++) TRY(unit_home(k, u));
    for (int u = 0; u < m->n_units; u++) TRY(place_params(k, u));
    return OK;
}
