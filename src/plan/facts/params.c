/* params.c -- the parameters of a rank and the reductions of their gradients.
 *
 *     pack of the rank    |  q  |  k  |  v  |  o  | norm |
 *     home of the rank             <--------->                 elements of k and v
 *     the pack's REDUCE   reduce-scatter over dp: all;  all-reduce over tp: norm
 *
 * The reductions of a parameter are the steps of the pack's first REDUCE that overlap its elements
 * of the pack. */
#include "plan/facts/facts.h"
#include "base/math.h"

static int first_reduce(const LinkedProgram *lp, int pack)
{
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].action.kind == A_REDUCE && lp->list[i].action.unit == pack) return i;
    return -1;
}

/* Offset of element 0 of the pack's gradients at this REDUCE. */
static size_t grads_base(const LinkedProgram *lp, int reduce)
{
    const Action *r = &lp->list[reduce].action;
    for (int i = reduce; i >= 0 && r->micro >= 0; i--) {
        const LinkedAction *l = &lp->list[i];
        const PackAddress *g = pack_address(l->grads, l->n_grads, r->unit);
        if (g && l->action.micro == r->micro) return g->at.offset;
    }
    return lp->pack[r->unit].grad_sums;
}

static bool same_ranks(RankList a, RankList b)
{
    if (a.n != b.n) return false;
    for (int i = 0; i < a.n; i++)
        if (a.rank[i] != b.rank[i]) return false;
    return true;
}

static Err add_reduction(ParamFacts *p, const LinkedStep *step)
{
    for (int i = 0; i < p->n_reductions; i++)
        if (p->reduction[i].what == step->what && same_ranks(p->reduction[i].group, step->t.group))
            return OK;
    if (p->n_reductions == MAX_GRAD_REDUCTIONS)
        return err_fail(ERR_CHECK, "explain: the gradient of %s is summed over more than %d groups",
                        p->name, MAX_GRAD_REDUCTIONS);
    p->reduction[p->n_reductions++] = (GradReduction){step->what, step->t.kind, step->t.group};
    return OK;
}

static Err find_reductions(const LinkedProgram *lp, ParamFacts *p)
{
    const int at = first_reduce(lp, p->pack_number);
    if (at < 0) return OK;
    const size_t base = grads_base(lp, at);
    const int64_t wide = (int64_t)dtype_bytes(dtype_wide(lp->model->dtype));
    for (int s = 0; s < lp->list[at].n_steps; s++) {
        const LinkedStep *step = &lp->list[at].step[s];
        if (step->kind != STEP_TRANSFER) continue;
        const int64_t lo = (int64_t)(step->t.from.offset - base) / wide;
        if (max_i64(lo, p->pack.lo) < min_i64(lo + step->t.from.count, p->pack.hi))
            TRY(add_reduction(p, step));
    }
    return OK;
}

static Err use_text(const Layout *use, const Mesh *m, Arena *arena, const char **out)
{
    const Layout plain = layout_simplify(use, m);
    Text t = text_in(arena);
    layout_text(&t, &plain, m);
    return text_done(&t, out);
}

static Err find_param(const Facts *f, int unit, int k, Arena *arena, ParamFacts *out)
{
    const LinkedProgram *lp = &f->job->linked;
    const Model *m = lp->model;
    const int param = m->unit[unit].param[k], owner = m->param[param].holder[0];
    const int pack = m->param[param].pack, i = m->param[param].pack_index;
    const PackMemory *at = &lp->pack[pack];
    const HomeParam *home = &at->home.param[i];
    const Holding held = holding_of(&home->use, lp->mesh, &home->shape, lp->rank);
    ParamFacts p = {.name = m->kind[m->unit[unit].kind].param[k].name,
                    .owner = owner,
                    .pack_number = pack,
                    .decay = m->param[param].info.decay,
                    .coded = m->param[param].info.coded,
                    .whole = home->shape,
                    .here = {.ndim = home->shape.ndim}};
    TRY(use_text(&home->use, lp->mesh, arena, &p.use));
    *out = p;
    if (!unit_is_here(lp, owner)) return OK;
    p.here = holding_shape(&held);
    p.pack = (Span){at->mine.pack_at[i], at->mine.pack_at[i + 1], 1};
    p.home =
        (Span){max_i64(p.pack.lo, at->mine.shard.lo), min_i64(p.pack.hi, at->mine.shard.hi), 1};
    if (p.home.hi < p.home.lo) p.home.hi = p.home.lo;
    TRY(find_reductions(lp, &p));
    *out = p;
    return OK;
}

Err facts_params(Facts *f, Arena *arena)
{
    const Model *m = &f->job->model;
    for (int c = 0; c < f->job->programs.n_classes; c++) {
        const int unit = f->class[c].first;
        TRY(ARENA_NEW(arena, m->unit[unit].n_params + 1, &f->class[c].param));
        for (int i = 0; i < m->unit[unit].n_params; i++)
            TRY(find_param(f, unit, i, arena, &f->class[c].param[i]));
    }
    return OK;
}
