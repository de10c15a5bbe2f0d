/* link.c -- binds a rank's actions to the programs of its units. */
#include "schedule/link/link_parts.h"

#include "schedule/check/check.h"
#include "schedule/text_form.h"

enum { DEFAULT_BLOCK = 65536 };

int64_t linked_tied_grad(const LinkedProgram *lp, int unit, int k)
{
    int64_t at = 0;
    for (int i = 0; i < k; i++)
        if (param_of(lp, unit, i)->holder[0] != unit)
            at += lp->param_count[lp->model->unit[unit].param[i]];
    return at;
}

/* Finds the REDUCE that takes the gradients of each micro-batch: the next one, by number. */
static Err find_groups(Linker *k)
{
    const LinkedProgram *lp = k->lp;
    const Model *m = lp->model;
    const int64_t rows = k->pack_rows, cells = rows * lp->micros;
    TRY(ARENA_NEW(k->arena, m->n_packs, &k->grouped));
    TRY(ARENA_NEW(k->arena, cells, &k->close));
    TRY(ARENA_NEW(k->arena, cells + rows, &k->reduce_at));
    for (int64_t i = 0; i < cells + rows; i++) k->reduce_at[i] = -1;
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind != A_REDUCE) continue;
        *reduce_of(k, a->unit, a->micro) = i;
        if (a->micro >= 0) k->grouped[a->unit] = true;
    }
    for (int p = 0; p < m->n_packs; p++)
        for (int micro = lp->micros - 1, close = -1; micro >= 0 && pack_on_stage(k, p); micro--) {
            if (*reduce_of(k, p, micro) >= 0) close = micro;
            *close_of(k, p, micro) = close;
            if (k->grouped[p] && close < 0)
                return err_fail(ERR_CHECK,
                                "unit %s: the list has no reduce.%d.%d or later: the gradients of "
                                "micro-batch %d would be lost",
                                m->unit[m->pack[p].unit].name, p, micro, micro);
        }
    return OK;
}

/* Checks that a gradient is complete before its REDUCE. A sum of several units needs a REDUCE after
 * the last of them. */
static Err check_reduced(const Linker *k, const Param *p, int at, int reduce)
{
    const Model *m = k->lp->model;
    if (reduce > at) return OK;
    if (p->n_holders > 1)
        return err_fail(
            ERR_CHECK,
            "parameter %s is held by %d units, and the list has no reduce.%d after the last of "
            "them has run: their sums would not be added",
            p->name, p->n_holders, p->pack);
    if (reduce >= 0)
        return err_fail(ERR_CHECK,
                        "parameter %s: position %d adds to its gradient, and position "
                        "%d has reduced it",
                        p->name, at, reduce);
    if (k->plan[p->pack].n > 0)
        return err_fail(ERR_CHECK,
                        "parameter %s: the list has no reduce.%d, and ranks share the gradients of "
                        "unit %s",
                        p->name, p->pack, m->unit[p->holder[0]].name);
    return OK;
}

static int holder_index(const Param *p, int unit)
{
    int h = 0;
    while (p->holder[h] != unit) h++;
    return h;
}

/* Marks the sums that this RUN overwrites: it is their first writer in this step, or since the last
 * REDUCE. written: [pack rows][micros + 1][MAX_HOLDERS], bits by index in the pack. */
static Err mark_fresh(Linker *k, int at, uint64_t *written)
{
    LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[at];
    const int unit = l->action.unit;
    for (int i = 0; i < lp->model->unit[unit].n_params; i++) {
        const Param *p = param_of(lp, unit, i);
        const int close = *close_of(k, p->pack, l->action.micro);
        const int64_t row = k->pack_row[p->pack];
        const uint64_t bit = (uint64_t)1 << p->pack_index;
        if (!writes_param(l, i)) continue;
        TRY(check_reduced(k, p, at, *reduce_of(k, p->pack, close)));
        uint64_t *seen =
            &written[(row * (lp->micros + 1) + close + 1) * MAX_HOLDERS + holder_index(p, unit)];
        if (!(*seen & bit)) l->fresh |= (uint64_t)1 << i;
        *seen |= bit;
    }
    return OK;
}

/* Checks that a GEMM that serves several parameters overwrites all of their sums, or none. */
static Err check_fresh(const LinkedProgram *lp, const LinkedAction *l)
{
    for (int i = 0; l->program && i < l->program->n_out; i++) {
        const PortOut *port = &l->program->out[i];
        const uint64_t all = ((((uint64_t)1 << (port->span - 1)) * 2) - 1) << port->param;
        if ((l->fresh & all) != 0 && (l->fresh & all) != all)
            return err_fail(
                ERR_CHECK,
                "unit %s: the sums of parameters %d to %d, made by one GEMM, do not start together",
                lp->model->unit[l->action.unit].name, port->param, port->param + port->span - 1);
    }
    return OK;
}

static Err bind_runs(Linker *k)
{
    LinkedProgram *lp = k->lp;
    uint64_t *written;
    const size_t mark = arena_mark(k->arena);
    TRY(ARENA_NEW(k->arena, k->pack_rows * (lp->micros + 1) * MAX_HOLDERS, &written));
    for (int i = 0; i < lp->n; i++) {
        if (!lp->list[i].program) continue;
        TRY(mark_fresh(k, i, written));
        TRY(check_fresh(lp, &lp->list[i]));
        k->writes = k->writes || lp->list[i].fresh != 0;
    }
    arena_rewind(k->arena, mark);
    return OK;
}

/* Sets the mesh; a mesh of one rank if none is given. */
static Err take_mesh(Linker *k)
{
    LinkedProgram *lp = k->lp;
    Mesh *one;
    lp->mesh = k->in->mesh;
    if (!lp->mesh) {
        TRY(ARENA_NEW(k->arena, 1, &one));
        *one = mesh_single();
        lp->mesh = one;
    }
    const unsigned pp = mesh_axes(lp->mesh, VIEW_DENSE, "pp");
    return mesh_group(lp->mesh, VIEW_DENSE, pp, lp->rank, k->arena, &lp->pp_group);
}

/* Checks that the rank is on the stage whose list it gets. */
static Err check_stage(const Linker *k)
{
    const LinkedProgram *lp = k->lp;
    const unsigned pp = mesh_axes(lp->mesh, VIEW_DENSE, "pp");
    const int part = mesh_part(lp->mesh, VIEW_DENSE, pp, lp->rank);
    if (lp->pp_group.n == k->s->stages && part == lp->stage) return OK;
    return err_fail(ERR_CHECK,
                    "list %d of a schedule of %d stages for rank %d, on stage %d of %d: give each "
                    "its own",
                    lp->stage, k->s->stages, lp->rank, part, lp->pp_group.n);
}

/* Checks that list and model number the same packs. */
static Err check_packs(const Schedule *s, const Model *m)
{
    for (int u = 0; u < m->n_units; u++)
        if (schedule_first_pack(s, u) != m->unit[u].first_pack ||
            schedule_first_pack(s, u + 1) != m->unit[u].first_pack + m->unit[u].n_packs)
            return err_fail(
                ERR_CHECK,
                "unit %s has packs %d to %d in the list, and %d to %d in the model: set "
                "Schedule.first_pack",
                m->unit[u].name, schedule_first_pack(s, u), schedule_first_pack(s, u + 1) - 1,
                m->unit[u].first_pack, m->unit[u].first_pack + m->unit[u].n_packs - 1);
    return OK;
}

Err schedule_link(const Schedule *s, int stage, const LinkInput *in, Arena *arena,
                  LinkedProgram *out)
{
    LinkedProgram lp = {.model = in->model,
                        .rank = in->rank,
                        .micros = s->micros,
                        .n_moments = in->n_moments,
                        .no_master = in->no_master,
                        .stage = stage,
                        .fold = in->fold ? in->fold : 1,
                        .block = in->block ? in->block : DEFAULT_BLOCK,
                        .n = s->n[stage]};
    Linker k = {.lp = &lp, .s = s, .in = in, .arena = arena};
    if (s->level != OVER_UNITS || schedule_units(s) != in->model->n_units)
        return err_fail(ERR_CHECK, "the schedule has %d units, the model %d; expand it first",
                        schedule_units(s), in->model->n_units);
    TRY(check_packs(s, in->model));
    TRY(take_mesh(&k));
    TRY(link_slices(&k));
    TRY(check_stage(&k));
    TRY(link_frames(&k));
    TRY(link_list(&k));
    TRY(link_homes(&k));
    TRY(find_groups(&k));
    TRY(link_plan(&k));
    TRY(bind_runs(&k));
    TRY(link_ends(&k));
    TRY(link_static(&k));
    TRY(bind_prepacked(&k));
    TRY(link_memory(&k, arena));
    TRY(link_workspace(&k, arena));
    TRY(link_steps(&k));
    *out = lp;
    return OK;
}
