/* groups.c -- announces every group of a program's transfers to the comm before the first step, so
 * that communicators of a device transport open collectively. */
#include <stdlib.h>

#include "run/rank_parts.h"
#include "schedule/traffic.h"

typedef struct {
    Transfer *t; /* NULL: only count */
    int n;
} GroupTransfers;

enum { MAX_TIMED = 1024 }; /* transfers of a step in a trace */

/* Transfers of scalars are left out: they use host memory. */
static Err add_transfer(void *context, const Transfer *t, int64_t times)
{
    GroupTransfers *g = context;
    (void)times;
    if (t->scalar) return OK;
    if (g->t) g->t[g->n] = *t;
    g->n++;
    return OK;
}

/* Collective over all ranks: after it, none of them loads code or allocates in a step. */
static Err rehearse_all(Rank *r)
{
    Comm *c = r->settings.comm;
    const int n = comm_ranks(c);
    if (!comm_waits_on_device(c) || n == 1) return OK;
    TRY(comm_quiet(c)); /* of an earlier program */
    int32_t *all = calloc((size_t)n, sizeof *all);
    if (!all) return err_fail(ERR_NOMEM, "no memory for a list of %d ranks", n);
    for (int i = 0; i < n; i++) all[i] = i;
    const Err err = comm_agree(c, (RankList){n, all}, rehearse(r));
    free(all);
    return err;
}

Err groups_prepare(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    GroupTransfers g = {0};
    if (r->groups_opened || !r->runtime || !r->settings.comm) return OK;
    TRY(rehearse_all(r));
    TRY(linked_visit(lp, add_transfer, &g));
    g.t = calloc((size_t)g.n + 1, sizeof *g.t);
    if (!g.t) return err_fail(ERR_NOMEM, "no memory for a list of %d transfers", g.n);
    g.n = 0;
    Err err = linked_visit(lp, add_transfer, &g);
    if (err == OK) err = comm_prepare(r->settings.comm, g.t, g.n);
    if (err == OK && r->timestamps.device) err = comm_times_open(r->settings.comm, MAX_TIMED);
    free(g.t);
    r->groups_opened = err == OK;
    return err == OK ? capture_settle(r) : err;
}
