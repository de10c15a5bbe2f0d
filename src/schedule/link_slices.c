/* link_slices.c -- where the slices of a micro-batch begin.
 *
 *     slice        0        1      2
 *     rows     |--------|------|-----|       slice_at 0 8 14 19
 *
 * Programs are compiled for the longest; how many rows of a slice are live is told when it runs. */
#include "schedule/link_parts.h"

Err link_slices(Linking *k)
{
    LinkedProgram *lp = k->lp;
    const int64_t *given = k->in->slice_at;
    int64_t *at;
    lp->slices = k->s->slices;
    TRY(ARENA_NEW(k->arena, lp->slices + 1, &at));
    at[lp->slices] = lp->model->rows;
    lp->slice_at = at;
    if (!given && lp->slices == 1) return OK;
    if (!given)
        return err_fail(ERR_CHECK, "the schedule has %d slices, and nobody says where they begin",
                        lp->slices);
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

static int64_t slice_rows(const LinkedProgram *lp, int slice)
{
    return lp->slice_at[slice + 1] - lp->slice_at[slice];
}

double linked_share(const LinkedProgram *lp, const Linked *l)
{
    int64_t longest = 0;
    for (int q = 0; q < lp->slices; q++)
        if (slice_rows(lp, q) > longest) longest = slice_rows(lp, q);
    return (double)slice_rows(lp, l->action.slice) / (double)longest;
}

double linked_flops(const LinkedProgram *lp, const Linked *l, const Instr *i)
{
    const bool attention = i->op == OP_attention || i->op == OP_attention_dx;
    const int64_t end = lp->slice_at[l->action.slice + 1], span = i->attr.attention.span;
    const double flops = i->flops * linked_share(lp, l);
    return attention && end < span ? flops * ((double)end / (double)span) : flops;
}
