/* slices.c -- the first rows of the slices of a micro-batch.
 *
 *     slice        0        1      2
 *     rows     |--------|------|-----|       slice_at 0 8 14 19
 *
 * Each length is a variant of the programs (schedule/programs.h). The number of live rows of a
 * slice is set when it runs. */
#include "ir/pairs.h"
#include "schedule/link/link_parts.h"

static Err take_programs(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const ProgramTable *given = k->in->programs;
    if (given)
        lp->programs = *given;
    else
        TRY(programs_by_kind(lp->model, k->in->program, lp->micros, k->arena, &lp->programs));
    if (lp->programs.slices != lp->slices || lp->programs.micros < lp->micros)
        return err_fail(ERR_CHECK,
                        "the schedule has %d micro-batches in %d slices, but there are programs "
                        "for %d in %d",
                        lp->micros, lp->slices, lp->programs.micros, lp->programs.slices);
    return programs_check(&lp->programs, lp->model);
}

Err link_slices(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const int64_t *given = k->in->slice_at;
    int64_t *at;
    lp->slices = k->s->slices;
    TRY(ARENA_NEW(k->arena, lp->slices + 1, &at));
    at[lp->slices] = lp->model->rows;
    lp->slice_at = at;
    TRY(take_programs(k));
    if (!given && lp->slices == 1) return OK;
    if (!given)
        return err_fail(ERR_CHECK, "the schedule has %d slices, but no cuts for them", lp->slices);
    for (int q = 0; q <= lp->slices; q++) at[q] = given[q];
    if (at[0] != 0 || at[lp->slices] != lp->model->rows)
        return err_fail(ERR_CHECK, "slices of rows %lld to %lld, of a micro-batch of %lld",
                        (long long)at[0], (long long)at[lp->slices], (long long)lp->model->rows);
    for (int q = 0; q < lp->slices; q++)
        if (at[q + 1] <= at[q])
            return err_fail(ERR_CHECK, "slice %d, of rows %lld to %lld, is empty", q,
                            (long long)at[q], (long long)at[q + 1]);
    return OK;
}

double linked_flops(const LinkedProgram *lp, const LinkedAction *l, const Program *p,
                    const Instr *i)
{
    const int64_t start = lp->slice_at[l->action.slice];
    if (!op_attends(i->op) || start == 0 || i->attr.kernel.attention.query_at) return i->flops;
    const Dim *queries = &p->tensor[i->in[0]].dim[0], *keys = &p->tensor[i->in[1]].dim[0];
    const double first = attention_pairs(&i->attr.kernel, queries, keys, 0);
    return first > 0 ? i->flops / first * attention_pairs(&i->attr.kernel, queries, keys, start)
                     : 0;
}
