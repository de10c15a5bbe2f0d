/* steps.c -- the steps of GATHERs, REDUCEs and moves, with addresses.
 *
 *     reduce.0.1   add         tied      work 8192 (head) -> work 4096 (embed)
 *                  all-reduce  model     work 5120, over tp
 *                  scatter     scatter   work 4096, over dp       overlaps
 *                  all-reduce  data      work 4608, over dp_replicate
 *                  add         sum       work 4608 -> step 512    the first is a copy */
#include "schedule/link/link_parts.h"

typedef struct {
    Linker *k;
    int at;
    LinkedStep *step;
    int n;
} StepList;

static Ref ref(const StepList *s, Address base, int64_t element, int64_t count, DType dtype)
{
    return (Ref){s->k->lp->rank, base.arena, base.offset + (size_t)element * dtype_bytes(dtype),
                 count, dtype};
}

static LinkedStep *push(StepList *s, StepKind kind, const char *what, Ref from, Ref to)
{
    LinkedStep *step = &s->step[s->n++];
    *step = (LinkedStep){.kind = kind, .what = what};
    step->t = (Transfer){
        .from = from, .to = to, .instr = s->at, .tag = s->k->lp->list[s->at].action.unit};
    return step;
}

/* Gathers the home's weights to the whole pack. */
static void gather_steps(StepList *s, int pack)
{
    const LinkedProgram *lp = s->k->lp;
    const PackMemory *p = &lp->pack[pack];
    const DType dtype = lp->model->pack[pack].type.use;
    const bool use = gathered_per_use(s->k, pack);
    const Address home = {ARENA_STATE, p->weights},
                  whole = {use ? ARENA_WORK : ARENA_STATE, use ? s->k->pack_off[s->at] : p->whole};
    const bool alone = p->group.n == 1;
    if (p->mine.pack_count == 0 || (alone && !use)) return;
    LinkedStep *step =
        push(s, alone ? STEP_COPY : STEP_TRANSFER, "gather", ref(s, home, 0, home_count(p), dtype),
             ref(s, whole, 0, p->mine.pack_count, dtype));
    step->t.kind = COMM_ALL_GATHER;
    step->t.group = p->group;
    step->t.purpose = PURPOSE_GATHER;
    step->t.to_counts = p->counts;
    if (!alone) lp->list[s->at].begun = 0;
}

/* The address of the unit's tied gradients for the pack's REDUCE of that micro-batch. */
static Address tied_grads_at(const Linker *k, int unit, int pack, int micro)
{
    if (!k->grouped[pack]) return (Address){ARENA_STEP, k->lp->unit[unit].tied_grads};
    return (Address){ARENA_WORK,
                     k->tied_grads_off[schedule_row(k->s, unit) * k->lp->micros + micro]};
}

/* Adds the gradients of tied parameters: a left fold over the holders, in the order of units. */
static void tied_steps(StepList *s, int pack, Address grads)
{
    const LinkedProgram *lp = s->k->lp;
    const Model *m = lp->model;
    const DType wide = m->pack[pack].type.wide;
    for (int i = 0; i < m->pack[pack].n_params; i++) {
        const int param = m->pack[pack].param[i];
        const Param *p = &m->param[param];
        for (int h = 1; h < p->n_holders; h++) {
            const int holder = p->holder[h];
            int k = 0;
            while (m->unit[holder].param[k] != param) k++;
            const int64_t count = lp->param_count[param];
            const Address from = tied_grads_at(s->k, holder, pack, lp->list[s->at].action.micro);
            push(s, STEP_ADD, "tied", ref(s, from, linked_tied_grad(lp, holder, k), count, wide),
                 ref(s, grads, lp->param_at[param], count, wide));
        }
    }
}

static void part_step(StepList *s, int pack, const ReducePart *part, Address grads)
{
    const PackMemory *p = &s->k->lp->pack[pack];
    const DType wide = s->k->lp->model->pack[pack].type.wide;
    const int64_t lo = part->lo + (part->home ? p->mine.shard.lo : 0), count = part->hi - part->lo;
    const Ref all = ref(s, grads, lo, count, wide);
    const bool scatter = part->kind == COMM_REDUCE_SCATTER;
    const Ref to = scatter ? ref(s, grads, p->mine.shard.lo, home_count(p), wide) : all;
    if (part->begun) s->k->lp->list[s->at].begun = s->n;
    LinkedStep *step = push(s, STEP_TRANSFER, part->what, all, to);
    step->t.kind = part->kind;
    step->t.reduce = REDUCE_SUM;
    step->t.group = part->group;
    step->t.purpose = PURPOSE_REDUCE;
    if (part->tag) step->t.tag = part->tag;
    step->t.from_counts = scatter ? p->counts : NULL;
}

static void reduce_steps(StepList *s, int pack, bool first)
{
    const Linker *k = s->k;
    const PackMemory *p = &k->lp->pack[pack];
    const DType wide = k->lp->model->pack[pack].type.wide;
    const int micro = k->lp->list[s->at].action.micro;
    Address grads = {ARENA_STEP, p->grad_sums};
    if (k->grouped[pack]) grads = (Address){ARENA_WORK, *grads_of(k, pack, micro)};
    if (grads.offset == NO_BASE) return; /* no RUN writes them */
    tied_steps(s, pack, grads);
    for (int i = 0; i < k->plan[pack].n; i++) part_step(s, pack, &k->plan[pack].part[i], grads);
    if (k->grouped[pack] && home_count(p) > 0)
        push(s, first ? STEP_COPY : STEP_ADD, "sum",
             ref(s, grads, p->mine.shard.lo, home_count(p), wide),
             ref(s, (Address){ARENA_STEP, p->reduced_grads}, 0, home_count(p), wide));
}

static int max_steps(const Linker *k, const Action *a)
{
    if (a->kind == A_QUANTIZE) return MAX_SCALES;
    if (a->kind != A_REDUCE) return 1;
    return k->lp->model->pack[a->unit].n_params * MAX_HOLDERS + k->plan[a->unit].n + 1;
}

/* Builds the steps of every action. The steps of a pack's REDUCEs differ only in addresses. */
Err link_steps(Linker *k)
{
    LinkedProgram *lp = k->lp;
    bool *reduced;
    TRY(ARENA_NEW(k->arena, lp->model->n_packs, &reduced));
    for (int i = 0; i < lp->n; i++) {
        LinkedAction *l = &lp->list[i];
        const int kind = l->action.kind, pack = l->action.unit;
        StepList s = {.k = k, .at = i};
        if (kind != A_GATHER && kind != A_REDUCE && kind != A_QUANTIZE && !is_move(&l->action) &&
            !is_frame(&l->action))
            continue;
        const size_t mark = align_up(arena_mark(k->arena));
        TRY(ARENA_NEW(k->arena, max_steps(k, &l->action), &s.step));
        l->begun = -1;
        if (is_stream(&l->action)) move_step(k, i, &s.step[s.n++]);
        if (is_frame(&l->action)) frame_step(k, i, &s.step[s.n++]);
        if (kind == A_QUANTIZE) s.n = codes_steps(k, i, s.step);
        if (kind == A_GATHER) gather_steps(&s, pack);
        if (kind == A_REDUCE) reduce_steps(&s, pack, !reduced[pack]);
        if (kind == A_REDUCE) reduced[pack] = true;
        l->step = s.step;
        l->n_steps = s.n;
        if (l->begun < 0) l->begun = s.n; /* all steps are done here */
        arena_rewind(k->arena, mark + (size_t)s.n * sizeof *s.step);
    }
    return OK;
}
