/* steps.c -- runs GATHERs, REDUCEs, SENDs, RECVs, EVICTs and FETCHes: lists of transfers, adds and
 * copies, one transfer of which overlaps with later actions.
 *
 *     position 4   gather.2   runs the steps before the overlapping transfer, and begins that
 *     position 5   F1.0       polls the comm (poll.c)
 *     position 6   F2.0       first ends position 4: waits for it, then runs the other steps */
#include "run/rank_parts.h"

/* The linked transfer with the arena numbers that this rank registered with the comm. */
static Transfer registered(const Rank *r, const Transfer *t)
{
    Transfer out = *t;
    out.from.arena += r->first_arena;
    out.to.arena += r->first_arena;
    return out;
}

static Tensor view(const Rank *r, const Ref *ref)
{
    return (Tensor){r->base[ref->arena] + ref->offset, ref->dtype, 1, {ref->count}, {1}};
}

static Err run_step(Rank *r, const LinkedStep *s)
{
    Call c = {.n_in = 1, .n_out = 1, .team = r->settings.team, .queue = r->queue};
    const Tensor from = view(r, &s->t.from), to = view(r, &s->t.to);
    if (s->kind == STEP_TRANSFER) {
        const Transfer t = registered(r, &s->t);
        return comm_do(r->settings.comm, &t);
    }
    c.out[0] = to;
    if (s->kind == STEP_COPY) {
        c.in[0] = from;
        return r->settings.device->kernel[KERNEL_copy](&c);
    }
    c.n_in = 2;
    c.in[0] = to;
    c.in[1] = from;
    return r->settings.device->kernel[KERNEL_add](&c);
}

Err steps_rehearse(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i < lp->n; i++)
        for (int k = 0; k < lp->list[i].n_steps; k++) {
            LinkedStep s = lp->list[i].step[k];
            if (s.kind == STEP_TRANSFER || memory_arena_bytes(r, ARENA_WORK) < sizeof(double))
                continue;
            s.t.from.arena = s.t.to.arena = ARENA_WORK;
            s.t.from.offset = s.t.to.offset = 0;
            s.t.from.count = s.t.to.count = 1;
            TRY(run_step(r, &s));
        }
    return OK;
}

Err steps_begin(Rank *r, int at)
{
    const LinkedAction *l = &r->settings.program->list[at];
    TRY(poison_steps(r, l));
    for (int i = 0; i < l->begun; i++) TRY(run_step(r, &l->step[i]));
    if (l->begun < l->n_steps) {
        const Transfer t = registered(r, &l->step[l->begun].t);
        TRY(tickets_begin_transfer(r, at, &t));
    }
    return l->end == at ? steps_end(r, at) : OK;
}

Err steps_end(Rank *r, int at)
{
    const LinkedAction *l = &r->settings.program->list[at];
    const Instr *deferred;
    if (l->begun == l->n_steps) return OK;
    TRY(tickets_wait(r, at, &deferred)); /* a transfer: never deferred */
    for (int i = l->begun + 1; i < l->n_steps; i++) TRY(run_step(r, &l->step[i]));
    return OK;
}

Err steps_scalar(Rank *r, int which)
{
    const ScalarCells *s = &r->settings.program->scalar[which];
    if (s->group.n == 1) return OK;
    Transfer t = s->t;
    t.from.arena = t.to.arena = r->first_arena + N_ARENAS; /* the mailbox */
    t.from.offset -= r->mailbox.start;
    t.to.offset -= r->mailbox.start;
    return comm_do(r->settings.comm, &t);
}

bool steps_sends(const LinkedProgram *lp)
{
    for (int i = 0; i < lp->n; i++)
        for (int s = 0; s < lp->list[i].n_steps; s++)
            if (lp->list[i].step[s].kind == STEP_TRANSFER) return true;
    for (int i = 0; i < N_SCALARS; i++)
        if (lp->scalar[i].group.n > 1) return true;
    return false;
}

Err steps_check(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    if (!steps_sends(lp)) return OK;
    if (!r->settings.comm)
        return err_fail(ERR_CHECK, "rank %d: its program has transfers, but no comm is given",
                        lp->rank);
    if (comm_rank(r->settings.comm) == lp->rank && comm_ranks(r->settings.comm) == lp->mesh->world)
        return OK;
    return err_fail(ERR_CHECK,
                    "the program is for rank %d of %d, the comm for rank %d of %d; give each rank "
                    "its own",
                    lp->rank, lp->mesh->world, comm_rank(r->settings.comm),
                    comm_ranks(r->settings.comm));
}
