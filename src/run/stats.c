/* stats.c -- statistics of routers: read from the device after the step, summed over micro-batches,
 * then over ranks. */
#include "run/rank_parts.h"

#include <string.h>

/* Adds n statistics of a micro-batch, in the wide type, to sum. */
static void add_stats(DType wide, const char *at, int64_t n, double *sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += wide == F64 ? ((const double *)(const void *)at)[i]
                              : (double)((const float *)(const void *)at)[i];
}

/* The mailbox has them since optimize_totals fetched it. */
Err stats_sum(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const ScalarCells *s = &lp->scalar[STATS];
    double *cell = (double *)(void *)mailbox_at(r, s->at);
    if (s->cells == 0) return OK;
    memset(cell, 0, (size_t)s->cells * sizeof *cell);
    for (int u = 0; u < lp->model->n_units; u++)
        for (int m = 0; m < lp->micros && lp->unit[u].stats != NO_BASE; m++)
            add_stats(dtype_wide(lp->model->dtype),
                      mailbox_at(r, lp->unit[u].stats + (size_t)m * linked_stat_bytes(lp)),
                      lp->stats, cell + lp->unit[u].stat_row * lp->stats);
    return steps_scalar(r, STATS);
}

const double *rank_stats(const Rank *r, int row)
{
    const LinkedProgram *lp = r->settings.program;
    const ScalarCells *s = &lp->scalar[STATS];
    if (s->cells == 0 || row >= s->cells / lp->stats) return NULL;
    return (const double *)(const void *)mailbox_at(r, s->at) + row * lp->stats;
}
