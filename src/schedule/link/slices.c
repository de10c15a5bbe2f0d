/* slices.c -- the first rows of the slices of a micro-batch.
 *
 *     slice        0        1      2
 *     rows     |--------|------|-----|       slice_at 0 8 14 19
 *
 * Each length has its own programs. The gradients that they leave to be reduced are the same for
 * all lengths, because a unit's gradients are reduced once for all slices. The number of live rows
 * of a slice is set when it runs. */
#include "ir/pairs.h"
#include "schedule/link/link_parts.h"

/* True if the gradient sums of both are of the same parameters, over the same axes. */
static bool same_ports(const Program *a, const Program *b)
{
    bool same = a->n_in == b->n_in && a->n_out == b->n_out && a->loss_partial == b->loss_partial;
    for (int i = 0; same && i < a->n_out; i++)
        same = a->out[i].param == b->out[i].param && a->out[i].span == b->out[i].span &&
               a->out[i].phase == b->out[i].phase && a->out[i].partial == b->out[i].partial;
    return same;
}

static Err check_programs(const LinkedProgram *lp)
{
    for (int kind = 0; kind < lp->model->n_kinds; kind++)
        for (int q = 0; q < lp->slices; q++)
            if (!same_ports(&lp->program[kind], &lp->by_slice[(int64_t)kind * lp->slices + q]))
                return err_fail(ERR_CHECK,
                                "program %s: slice %d leaves other sums of gradients to be reduced "
                                "than the longest; set another parallel.slices",
                                lp->program[kind].kind, q);
    return OK;
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
    lp->by_slice = k->in->by_slice ? k->in->by_slice : lp->program;
    if (!given && lp->slices == 1) return OK;
    if (!given || !k->in->by_slice)
        return err_fail(ERR_CHECK, "the schedule has %d slices, but no cuts and programs for them",
                        lp->slices);
    for (int q = 0; q <= lp->slices; q++) at[q] = given[q];
    if (at[0] != 0 || at[lp->slices] != lp->model->rows)
        return err_fail(ERR_CHECK, "slices of rows %lld to %lld, of a micro-batch of %lld",
                        (long long)at[0], (long long)at[lp->slices], (long long)lp->model->rows);
    for (int q = 0; q < lp->slices; q++)
        if (at[q + 1] <= at[q])
            return err_fail(ERR_CHECK, "slice %d, of rows %lld to %lld, is empty", q,
                            (long long)at[q], (long long)at[q + 1]);
    return check_programs(lp);
}

double linked_flops(const LinkedProgram *lp, const LinkedAction *l, const Program *p,
                    const Instr *i)
{
    const int64_t start = lp->slice_at[l->action.slice];
    if (!op_attends(i->op) || start == 0) return i->flops;
    const Dim *queries = &p->tensor[i->in[0]].dim[0], *keys = &p->tensor[i->in[1]].dim[0];
    const double first = attention_pairs(&i->attr.kernel, queries, keys, 0);
    return first > 0 ? i->flops / first * attention_pairs(&i->attr.kernel, queries, keys, start)
                     : 0;
}
