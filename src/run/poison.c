/* poison.c -- fills memory with NaN where a read would be a bug: between the start of a lifetime
 * and the first write, and after the end of a lifetime. Such a read then shows in the results. */
#include "run/rank_parts.h"

Err poison_run(const Rank *r, const LinkedAction *l)
{
    if (!r->settings.poison) return OK;
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i < l->n_grads; i++) {
        const PackAddress *g = &l->grads[i];
        const size_t wide = dtype_bytes(lp->model->pack[g->pack].type.wide);
        if (g->begins)
            TRY(rank_fill(r, r->base[g->at.arena] + g->at.offset, 0xFF,
                          (size_t)lp->pack[g->pack].mine.pack_count * wide));
    }
    if (l->begins & BEGINS_TIED_GRADS)
        TRY(rank_fill(r, r->base[l->tied_grads.arena] + l->tied_grads.offset, 0xFF,
                      (size_t)lp->unit[l->action.unit].tied_count *
                          dtype_bytes(dtype_wide(lp->model->dtype))));
    for (int region = 0; region < N_OWN_REGIONS; region++) {
        if (!(l->begins >> region & 1)) continue;
        const size_t bytes = region == REGION_SCRATCH ? l->program->scratch_bytes[l->action.phase]
                                                      : l->program->bytes[region];
        TRY(rank_fill(r, r->base[region == REGION_HOST ? ARENA_HOST : ARENA_WORK] + l->base[region],
                      0xFF, bytes));
    }
    return OK;
}

Err poison_steps(const Rank *r, const LinkedAction *l)
{
    const int kind = l->action.kind;
    if (!r->settings.poison) return OK;
    if ((kind != A_GATHER && kind != A_RECV && kind != A_FETCH) || l->n_steps == 0) return OK;
    const Ref *from = &l->step[0].t.from, *to = &l->step[0].t.to;
    const size_t bytes = (size_t)to->count * dtype_bytes(to->dtype);
    const size_t own = (size_t)from->count * dtype_bytes(from->dtype);
    char *base = r->base[to->arena] + to->offset;
    const bool in_place = kind == A_GATHER && from->arena == to->arena;
    const size_t before = in_place ? from->offset - to->offset : bytes;
    TRY(rank_fill(r, base, 0xFF, before));
    return in_place ? rank_fill(r, base + before + own, 0xFF, bytes - before - own) : OK;
}

Err poison_freed(const Rank *r, const LinkedAction *l)
{
    for (int i = 0; r->settings.poison && i < l->n_freed; i++)
        TRY(rank_fill(r, r->base[l->freed[i].arena] + l->freed[i].offset, 0xFF, l->freed[i].bytes));
    return OK;
}
