/* plan.c -- the transfers of a pack's REDUCE, before addresses are known.
 *
 *     pack      q q q q k k k k v v v v o o o o n n n       tp=2 sp, dp=2, keys and values copied
 *     stages    tied weights that another stage also holds: all-reduce over the two
 *     copies            k k|    v v|                        all-reduce over the ranks with copies
 *     model                             n n n               norms: partial sums over tp
 *     scatter   q q q q k k k k v|v v v o o o o n n n       over dp: each rank gets its home
 *     data      the rank's home, over dp_replicate
 *
 * Programs do not depend on dp: every rank along it has its own micro-batches, so every gradient is
 * partial over dp. Ranks along cp have other tokens of the same micro-batches; programs leave
 * gradients partial over cp, and one scatter sums over dp and cp. The layouts determine the list of
 * transfers. */
#include "schedule/link/link_parts.h"

#include "layout/copies.h"

/* The axes whose ranks have micro-batches of their own. */
static unsigned batch_axes(const Mesh *m, int view)
{
    return mesh_axes(m, view, view == VIEW_EXPERT ? "edp" : "dp");
}

/* The axes over which the gradient of `param` is a partial sum after that unit's program. */
static unsigned partial_of(const LinkedProgram *lp, int unit, int param)
{
    const Unit *u = &lp->model->unit[unit];
    const Program *p = programs_of_unit(&lp->programs, unit);
    const int view = lp->model->param[param].info.view;
    unsigned partial = batch_axes(lp->mesh, view);
    if (view == VIEW_EXPERT) return partial; /* edp: all ranks with other tokens, also along cp */
    for (int i = 0; i < p->n_out; i++)
        for (int k = p->out[i].param; k < p->out[i].param + p->out[i].span; k++)
            if (u->param[k] == param) partial |= p->out[i].partial;
    return partial;
}

/* ERR_CHECK if a reduce-scatter of the pack would add equal gradients: those of a parameter that
 * the program has summed over a shard axis, or has computed from the same tokens on all ranks. */
static Err check_scattered(const Home *h, int i, unsigned partial)
{
    const unsigned equal = h->shard & ~partial;
    if (mesh_parts(h->mesh, h->view, equal) == 1) return OK;
    return err_fail(ERR_CHECK,
                    "parameter %s: its gradient is complete on all ranks along axes 0x%x, over "
                    "which its pack is reduce-scattered",
                    h->param[i].name, equal);
}

static Err reduce_axes(const Linker *k, int pack, int i, HomeReduce *out)
{
    const LinkedProgram *lp = k->lp;
    const int unit = lp->model->pack[pack].unit, param = lp->model->pack[pack].param[i];
    const Param *p = &lp->model->param[param];
    const unsigned partial = partial_of(lp, unit, param);
    for (int h = 1; h < p->n_holders; h++)
        if (partial_of(lp, p->holder[h], param) != partial)
            return err_fail(ERR_CHECK,
                            "parameter %s: its gradient is a partial sum over axes 0x%x in unit %s "
                            "and over 0x%x in unit %s; the two cannot be added",
                            p->name, partial, lp->model->unit[unit].name,
                            partial_of(lp, p->holder[h], param),
                            lp->model->unit[p->holder[h]].name);
    *out = home_reduce(&lp->pack[pack].home, i, partial);
    if (programs_of_unit(&lp->programs, unit)->n_out == 0) return OK; /* the loss alone */
    return check_scattered(&lp->pack[pack].home, i, partial);
}

/* The stages that hold a parameter or a copy of it, in order. */
static Err stages_of(const Linker *k, int unit, int param, RankList *out)
{
    const LinkedProgram *lp = k->lp;
    const Model *m = lp->model;
    const int first = m->param[param].copy_of >= 0 ? m->param[param].copy_of : param;
    const unsigned partial = partial_of(lp, unit, param);
    int32_t *list;
    *out = (RankList){0};
    if (!model_is_shared(m, param)) return OK;
    TRY(ARENA_NEW(k->arena, lp->pp_group.n, &list));
    for (int stage = 0; stage < lp->pp_group.n; stage++)
        for (int i = 0; i < m->n_params; i++) {
            const int holder = m->param[i].holder[0];
            if ((i != first && m->param[i].copy_of != first) ||
                schedule_stage_of(k->s, holder) != stage)
                continue;
            list[out->n++] = lp->pp_group.rank[stage];
            if (partial_of(lp, holder, i) != partial)
                return err_fail(ERR_CHECK,
                                "parameter %s: its gradient is a partial sum over axes 0x%x in "
                                "unit %s and over 0x%x in unit %s; the two cannot be added",
                                m->param[param].name, partial, m->unit[unit].name,
                                partial_of(lp, holder, i), m->unit[holder].name);
        }
    out->rank = list;
    return OK;
}

/* The tag of the sum, the same on all stages: the number of the parameter that is copied. */
static int32_t stages_tag(const Linker *k, int pack, int i)
{
    const Model *m = k->lp->model;
    const int param = m->pack[pack].param[i];
    return m->n_packs + (m->param[param].copy_of >= 0 ? m->param[param].copy_of : param);
}

static void push(ReducePlan *plan, ReducePart part)
{
    if (part.group.n > 1 && part.lo < part.hi) plan->part[plan->n++] = part;
}

static Err plan_copies(const Linker *k, int pack, int i, const CopyRun **run, int *n)
{
    const Home *h = &k->lp->pack[pack].home;
    return copies_of(&h->param[i].use, h->mesh, &h->param[i].shape, k->lp->rank, k->arena, run, n);
}

/* Pieces to all-reduce, each over its own axes. */
typedef struct {
    const char *what;
    bool home;
    const unsigned *axes; /* [pieces] */
    const Span *piece;    /* in order, without overlap */
    int n;
} PieceAxes;

static Err plan_all_reduces(const Linker *k, const PackMemory *at, const PieceAxes *s,
                            ReducePlan *plan)
{
    for (int i = 0; i < s->n;) {
        int end = i + 1;
        RankList group;
        while (end < s->n && s->axes[end] == s->axes[i] && s->piece[end].lo == s->piece[end - 1].hi)
            end++;
        TRY(mesh_group(k->lp->mesh, at->home.view, s->axes[i], k->lp->rank, k->arena, &group));
        push(plan, (ReducePart){.what = s->what,
                                .kind = COMM_ALL_REDUCE,
                                .group = group,
                                .lo = s->piece[i].lo,
                                .hi = s->piece[end - 1].hi,
                                .home = s->home});
        i = end;
    }
    return OK;
}

static Err plan_model(const Linker *k, const PackMemory *at, const HomeReduce *axes_of,
                      ReducePlan *plan)
{
    unsigned axes[MAX_PORTS];
    Span piece[MAX_PORTS];
    for (int i = 0; i < at->home.n; i++) {
        axes[i] = axes_of[i].model;
        piece[i] = (Span){at->mine.pack_at[i], at->mine.pack_at[i + 1], 1};
    }
    return plan_all_reduces(k, at, &(PieceAxes){"model", false, axes, piece, at->home.n}, plan);
}

static Err plan_data(const Linker *k, const PackMemory *at, const HomeReduce *axes_of,
                     ReducePlan *plan)
{
    unsigned axes[MAX_PORTS];
    Span piece[MAX_PORTS];
    for (int i = 0; i < at->mine.n_pieces; i++) {
        const HomePiece *p = &at->mine.piece[i];
        axes[i] = axes_of[p->param].data;
        piece[i] = (Span){p->at, p->at + p->hi - p->lo, 1};
    }
    return plan_all_reduces(k, at, &(PieceAxes){"data", true, axes, piece, at->mine.n_pieces},
                            plan);
}

/* Adds the sums over stages. They precede all others, which are within one stage. */
static Err plan_stages(const Linker *k, int pack, ReducePlan *plan)
{
    const Pack *of = &k->lp->model->pack[pack];
    const PackMemory *at = &k->lp->pack[pack];
    for (int i = 0; i < at->home.n; i++) {
        RankList stages;
        TRY(stages_of(k, of->unit, of->param[i], &stages));
        push(plan, (ReducePart){.what = "stages",
                                .kind = COMM_ALL_REDUCE,
                                .group = stages,
                                .lo = at->mine.pack_at[i],
                                .hi = at->mine.pack_at[i + 1],
                                .tag = stages_tag(k, pack, i)});
    }
    return OK;
}

/* Chooses the transfer that overlaps with later actions: the scatter, or the last sum over dp. */
static void choose_begun(ReducePlan *plan, int first)
{
    if (plan->n == first) return;
    const bool scatter = plan->part[first].kind == COMM_REDUCE_SCATTER;
    plan->part[scatter ? first : plan->n - 1].begun = true;
    plan->begins = true;
}

static Err plan_pack(Linker *k, int pack)
{
    const PackMemory *at = &k->lp->pack[pack];
    ReducePlan *plan = &k->plan[pack];
    HomeReduce axes_of[MAX_PORTS];
    const CopyRun *run[MAX_PORTS];
    int n_runs[MAX_PORTS], room = 3 * at->home.n + 1;
    for (int i = 0; i < at->home.n; i++) {
        TRY(reduce_axes(k, pack, i, &axes_of[i]));
        TRY(plan_copies(k, pack, i, &run[i], &n_runs[i]));
        room += n_runs[i];
    }
    TRY(ARENA_NEW(k->arena, room, &plan->part));
    TRY(plan_stages(k, pack, plan));
    for (int i = 0; i < at->home.n; i++)
        for (int c = 0; c < n_runs[i]; c++)
            push(plan, (ReducePart){.what = "copies",
                                    .kind = COMM_ALL_REDUCE,
                                    .group = run[i][c].holders,
                                    .lo = at->mine.pack_at[i] + run[i][c].lo,
                                    .hi = at->mine.pack_at[i] + run[i][c].hi});
    TRY(plan_model(k, at, axes_of, plan));
    const int first = plan->n;
    push(plan, (ReducePart){.what = "scatter",
                            .kind = COMM_REDUCE_SCATTER,
                            .group = at->group,
                            .hi = at->mine.pack_count});
    TRY(plan_data(k, at, axes_of, plan));
    choose_begun(plan, first);
    return OK;
}

Err link_plan(Linker *k)
{
    TRY(ARENA_NEW(k->arena, k->lp->model->n_packs, &k->plan));
    for (int p = 0; p < k->lp->model->n_packs; p++)
        if (pack_on_stage(k, p)) TRY(plan_pack(k, p));
    return OK;
}
