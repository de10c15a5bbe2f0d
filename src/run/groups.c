/* groups.c -- the groups that a program's transfers are over, for a comm that has something to open for
 * each: told once, before the first step, when all ranks of the program are there. */
#include <stdlib.h>

#include "run/rank_parts.h"
#include "schedule/sent.h"

typedef struct {
    Transfer *t; /* NULL: they are counted */
    int n;
} Groups;

/* Scalars are on the host. */
static Err note(void *context, const Transfer *t, int64_t times)
{
    Groups *g = context;
    (void)times;
    if (t->scalar) return OK;
    if (g->t) g->t[g->n] = *t;
    g->n++;
    return OK;
}

Err groups_prepare(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    Groups g = {0};
    if (r->groups_opened || !r->runtime || !r->settings.comm) return OK;
    TRY(linked_visit(lp, note, &g));
    g.t = calloc((size_t)g.n + 1, sizeof *g.t);
    if (!g.t) return err_fail(ERR_NOMEM, "no memory for a list of %d transfers", g.n);
    g.n = 0;
    Err err = linked_visit(lp, note, &g);
    if (err == OK) err = comm_prepare(r->settings.comm, g.t, g.n);
    free(g.t);
    r->groups_opened = err == OK;
    return err;
}
