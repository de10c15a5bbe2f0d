/* link.c -- binds a rank's actions to the programs of its units. */
#include "schedule/link.h"

#include "schedule/check.h"
#include "schedule/textform.h"

static bool phase_covers(Phase run, Phase part)
{
    return run == part || (run == PHASE_B && part != PHASE_F);
}

size_t linked_grad(const LinkedProgram *lp, int unit, int k)
{
    const Model *m = lp->model;
    const Unit *u = &m->unit[unit];
    const size_t element = dtype_bytes(dtype_wide(m->dtype));
    const Param *p = &m->param[u->param[k]];
    if (p->holder[0] == unit) return lp->unit[unit].grads + (size_t)p->pack_at * element;
    size_t at = lp->unit[unit].guests;
    for (int i = 0; i < k; i++) {
        const Param *before = &m->param[u->param[i]];
        if (before->holder[0] != unit) at += (size_t)before->count * element;
    }
    return at;
}

static Err refuse_moves(const Schedule *s, int rank)
{
    for (int i = 0; i < s->n[rank]; i++) {
        const ActionKind kind = (ActionKind)s->list[rank][i].kind;
        if (kind == A_RUN || kind == A_REDUCE || kind == A_NORM || kind == A_UPDATE ||
            kind == A_BIND)
            continue;
        return err_fail(
            ERR_CONFIG,
            "rank %d: action %d is a %s: not yet; this version runs lists of RUN, REDUCE, "
            "NORM, UPDATE and BIND, on one rank",
            rank, i, action_kind_name(kind));
    }
    return OK;
}

/* Does this RUN add to sums of gradients? */
static bool writes_sums(const Linked *l)
{
    for (int i = 0; i < l->program->n_out; i++)
        if (phase_covers((Phase)l->action.phase, (Phase)l->program->out[i].phase)) return true;
    return false;
}

/* Sums that nobody has added to in this step start at their first writer. */
static void mark_fresh(Linked *l, bool *seen)
{
    const Program *p = l->program;
    for (int i = 0; i < p->n_out; i++) {
        const PortOut *port = &p->out[i];
        if (!phase_covers((Phase)l->action.phase, (Phase)port->phase)) continue;
        for (int k = port->param; k < port->param + port->span; k++) {
            if (!seen[k]) l->fresh |= (uint64_t)1 << k;
            seen[k] = true;
        }
    }
}

/* A product that serves several parameters starts their sums together, or none of them. */
static Err check_fresh(const LinkedProgram *lp, const Linked *l)
{
    for (int i = 0; l->program && i < l->program->n_out; i++) {
        const PortOut *port = &l->program->out[i];
        const uint64_t all = ((((uint64_t)1 << (port->span - 1)) * 2) - 1) << port->param;
        if ((l->fresh & all) != 0 && (l->fresh & all) != all)
            return err_fail(
                ERR_CHECK,
                "unit %s: the sums of parameters %d to %d, made by one product, start apart",
                lp->model->unit[l->action.unit].name, port->param, port->param + port->span - 1);
    }
    return OK;
}

/* The last position at which a holder of the parameter writes to its sum, or -1. */
static int last_writer(const LinkedProgram *lp, const Param *p)
{
    for (int i = lp->n - 1; i >= 0; i--) {
        const Linked *l = &lp->list[i];
        for (int h = 0; h < p->n_holders && l->program; h++)
            if (l->action.unit == p->holder[h] && writes_sums(l)) return i;
    }
    return -1;
}

/* A parameter that several units hold has several sums: without a REDUCE all but one would be lost. */
static Err check_holders(const LinkedProgram *lp)
{
    for (int k = 0; k < lp->model->n_params; k++) {
        const Param *p = &lp->model->param[k];
        const int last = p->n_holders > 1 ? last_writer(lp, p) : -1;
        bool reduced = last < 0;
        for (int i = last + 1; i < lp->n; i++)
            reduced = reduced || (lp->list[i].action.kind == A_REDUCE &&
                                  lp->list[i].action.unit == p->holder[0]);
        if (!reduced)
            return err_fail(
                ERR_CHECK,
                "parameter %s is held by %d units, and the list has no reduce.%d after the last of "
                "them has run: their sums would not be added",
                p->name, p->n_holders, p->holder[0]);
    }
    return OK;
}

Err schedule_link(const Schedule *s, int rank, const LinkInput *in, Arena *arena,
                  LinkedProgram *out)
{
    LinkedProgram lp = {.model = in->model,
                        .program = in->program,
                        .micros = s->micros,
                        .n_moments = in->n_moments,
                        .n = s->n[rank]};
    bool *seen;
    if (s->grain != OVER_UNITS || schedule_units(s) != in->model->n_units)
        return err_fail(ERR_CHECK, "the schedule has %d units, the model %d; expand it first",
                        schedule_units(s), in->model->n_units);
    TRY(refuse_moves(s, rank));
    TRY(ARENA_NEW(arena, lp.n + 1, &lp.list));
    TRY(ARENA_NEW(arena, in->model->n_units, &lp.unit));
    TRY(ARENA_NEW(arena, in->model->n_units * MAX_PORTS, &seen));
    for (int i = 0; i < lp.n; i++) {
        Linked *l = &lp.list[i];
        l->action = s->list[rank][i];
        if (l->action.kind != A_RUN) continue;
        l->program = &in->program[in->model->unit[l->action.unit].kind];
        mark_fresh(l, &seen[l->action.unit * MAX_PORTS]);
        TRY(check_fresh(&lp, l));
    }
    TRY(check_holders(&lp));
    TRY(link_memory(&lp, s, arena));
    *out = lp;
    return OK;
}
