/* transfers.c -- the transfers of a rank in a step, summed by purpose, kind and group.
 *
 * They are the transfers that run/ begins; their sent bytes add up to those of linked_traffic. */
#include <string.h>
#include "plan/facts/facts.h"

/* Purposes of transfers, in the order of the table: those of LinkedStep.what, "program",
 * "scalar". */
static const struct {
    const char *what, *text;
} purpose[] = {
    {"program", "activations, within units"},
    {"forward", "activations, between stages"},
    {"backward", "their gradients, between stages"},
    {"scales", "parameters, scales in FP8"},
    {"gather", "parameters, from home to use"},
    {"stages", "gradients, of weights on two stages"},
    {"copies", "gradients, of replicated elements"},
    {"model", "gradients, over model axes"},
    {"scatter", "gradients, to their homes"},
    {"data", "gradients, over data axes"},
    {"scalar", "live tokens, loss, norm"},
};
enum { N_PURPOSES = sizeof purpose / sizeof *purpose };

static int purpose_of(const char *what)
{
    int i = 0;
    while (i < N_PURPOSES && strcmp(purpose[i].what, what) != 0) i++;
    return i;
}

static bool row_before(const TransferRow *a, const TransferRow *b)
{
    const int p = purpose_of(a->what), q = purpose_of(b->what);
    const int words = strcmp(a->what, b->what);
    if (p != q) return p < q;
    if (words) return words < 0; /* both are missing in the table */
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->axes != b->axes ? a->axes < b->axes : a->ranks < b->ranks;
}

static Err add_row(Facts *f, TransferRow row)
{
    int at = 0;
    while (at < f->n_transfers && row_before(&f->transfer[at], &row)) at++;
    if (at == f->n_transfers || row_before(&row, &f->transfer[at])) {
        if (f->n_transfers == MAX_TRANSFER_ROWS)
            return err_fail(ERR_CHECK, "explain: more than %d kinds of transfers",
                            MAX_TRANSFER_ROWS);
        for (int i = f->n_transfers++; i > at; i--) f->transfer[i] = f->transfer[i - 1];
        f->transfer[at] = (TransferRow){row.what, row.text, row.kind, row.axes, row.ranks, 0, 0, 0};
    }
    f->transfer[at].times += row.times;
    f->transfer[at].bytes += row.bytes;
    f->transfer[at].sent_bytes += row.sent_bytes;
    f->sent_bytes += row.sent_bytes;
    return OK;
}

static Err add_transfer(Facts *f, const char *what, const Transfer *t, int64_t times)
{
    const LinkedProgram *lp = &f->job->linked;
    const Ref *whole = t->kind == COMM_RECV ? &t->to : &t->from;
    const int p = purpose_of(what);
    return add_row(
        f, (TransferRow){.what = what,
                         .text = p < N_PURPOSES ? purpose[p].text : what,
                         .kind = t->kind,
                         .axes = group_axes(lp->mesh, t->group),
                         .ranks = t->group.n,
                         .times = times,
                         .bytes = (size_t)(times * whole->count) * dtype_bytes(whole->dtype),
                         .sent_bytes = (size_t)times * transfer_sent(t, lp->rank)});
}

/* Visits transfers of programs and scalars; those of GATHER and REDUCE are counted in their
 * steps. */
static Err visit(void *context, const Transfer *t, int64_t times)
{
    if (t->scalar) return add_transfer(context, "scalar", t, times);
    return t->purpose == PURPOSE_PROGRAM ? add_transfer(context, "program", t, times) : OK;
}

Err facts_transfers(Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    TRY(linked_visit(lp, visit, f));
    for (int i = 0; i < lp->n; i++)
        for (int s = 0; s < lp->list[i].n_steps; s++) {
            const LinkedStep *step = &lp->list[i].step[s];
            if (step->kind == STEP_TRANSFER && step->t.group.n > 1)
                TRY(add_transfer(f, step->what, &step->t, 1));
        }
    return OK;
}
