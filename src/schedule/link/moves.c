/* moves.c -- transfers of values between stages: posted early, waited for late.
 *
 *     list      F1.0 recv.F0.1<0 F1.1 send.F1.1>2 ...
 *     linked    recv.F0.1<0 F1.0 F1.1 send.F1.1>2 ...
 *                             |    |
 *                             |    recv.F0.1 is waited for before the RUN that reads it
 *                             one RUN during which it arrives
 *
 * A send is waited for before the next send of that direction to that stage, or before the gradient
 * of its value is read, since the value has long arrived by then. The lists have each SEND next to
 * its RECV in one order of all stages. Transfers that start earlier and end later than in that
 * order make no circle. Starts keep their order, so the n-th send matches the n-th receive. */
#include "schedule/link/link_parts.h"

static void push(Linker *k, int *at, int from)
{
    LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[*at];
    const Action a = k->from[from];
    l->action = a;
    if (k->from_region) l->region = k->from_region[from];
    if (a.kind == A_RUN) l->program = linked_program(lp, a.unit, a.micro, a.slice);
    if (is_stream(&a)) *move_of(k, a.unit, a.micro, a.slice, action_direction(&a)) = *at;
    ++*at;
}

static bool comes_early(const Action *a) { return a->kind == A_RECV && is_stream(a); }

/* Moves the receives that stand between a RUN and the next one before that RUN. */
static void order_list(Linker *k)
{
    const Action *from = k->from;
    const bool early = !k->in->in_order;
    bool begun = false; /* a RUN has been written */
    for (int i = 0, at = 0; i < k->n_from; i++) {
        const bool run = from[i].kind == A_RUN;
        for (int next = i + 1; early && run && next < k->n_from && from[next].kind != A_RUN; next++)
            if (comes_early(&from[next])) push(k, &at, next);
        begun = begun || run;
        if (!comes_early(&from[i]) || !early || !begun) push(k, &at, i);
    }
}

Err link_list(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const int64_t moves = schedule_cells(k->s) * N_DIRECTIONS;
    lp->n = k->n_from;
    TRY(ARENA_NEW(k->arena, lp->n + 1, &lp->list));
    TRY(ARENA_NEW(k->arena, moves, &k->move_at));
    for (int64_t i = 0; i < moves; i++) k->move_at[i] = -1;
    for (int i = 0; i <= lp->n; i++) {
        LinkedAction *l = &lp->list[i];
        l->tied_grads = (Address){ARENA_STEP, NO_BASE};
        for (int r = 0; r <= REGION_DY; r++) l->base[r] = NO_BASE;
    }
    order_list(k);
    lp->has_loss = on_stage(k, lp->model->n_units - 1);
    return OK;
}

/* The tensor of a region that holds one tensor, at its beginning. */
static Ref region_ref(const Program *p, Region region)
{
    for (int i = 0; i < p->n_tensors; i++) {
        const ProgTensor *t = &p->tensor[i];
        if (t->at[SPLIT].region != region || t->view_of != i) continue;
        Ref ref = {.count = 1, .dtype = t->dtype};
        for (int d = 0; d < t->ndim; d++) ref.count *= t->dim[d].cap;
        return ref;
    }
    MUST(false, "program %s has nothing in region %s", p->kind, region_name(region));
    return (Ref){0};
}

void move_step(const Linker *k, int at, LinkedStep *out)
{
    LinkedProgram *lp = k->lp;
    LinkedAction *l = &lp->list[at];
    const Action *a = &l->action;
    const bool forward = action_direction(a) == DIRECTION_FORWARD, send = a->kind == A_SEND;
    const Region region = forward ? REGION_Y : REGION_DX;
    Ref here = region_ref(linked_program(lp, a->unit, a->micro, a->slice), region), there = here;
    here.rank = lp->rank;
    here.arena = ARENA_WORK;
    here.offset = here.count > 0 ? l->base[region] : 0;
    there.rank = lp->pp_group.rank[a->peer];
    MUST(here.offset != NO_BASE, "position %d: unit %d has no %s", at, a->unit,
         region_name(region));
    *out = (LinkedStep){.kind = STEP_TRANSFER, .what = forward ? "forward" : "backward"};
    out->t = (Transfer){.kind = send ? COMM_SEND : COMM_RECV,
                        .group = lp->pp_group,
                        .purpose = forward ? PURPOSE_FORWARD : PURPOSE_BACKWARD,
                        .from = send ? here : there,
                        .to = send ? there : here,
                        .instr = at,
                        .tag = action_tag(a, 0)};
    l->begun = 0;
}
