/* ideal.c -- the ideal machine: no price there is above that of the machine, for any size. */
#include "plan/search/ideal.h"

#include <math.h>
#include <string.h>
#include "plan/clock/alone.h"

/* A line through the origin that is below all points of the table. */
static CostTable below(const CostTable *t)
{
    CostTable out = *t;
    const CostCurve *c = &t->seconds;
    double slope = (double)INFINITY;
    for (int i = 0; i < c->n; i++)
        if (c->y[i] / c->x[i] < slope) slope = c->y[i] / c->x[i];
    out.seconds = (CostCurve){.n = 2, .x = {1, c->x[c->n - 1]}};
    for (int i = 0; i < 2; i++) out.seconds.y[i] = slope * out.seconds.x[i];
    return out;
}

/* All pairs are as fast as the fastest; those that were not measured have the rate of a level. */
static void set_pairs(CostRates *r)
{
    double most = 0;
    const int n = r->pairs ? r->pairs->n * (r->pairs->n - 1) / 2 : 0;
    for (int i = 0; i < n; i++) most = fmax(most, (double)r->pairs->Bps[i]);
    for (int i = 0; i < r->n_levels && n > 0; i++) {
        CostLink *l = &r->level[i];
        const double own = l->pair_Bps > 0    ? l->pair_Bps
                           : l->shared_by > 1 ? l->Bps / l->shared_by
                                              : l->Bps;
        l->pair_Bps = fmax(most, own);
    }
    r->pairs = NULL;
}

static Err set_transfers(CostRates *r, Arena *arena)
{
    CostTable *table;
    for (int i = 0; i < r->n_levels; i++) r->level[i].latency_s = r->level[i].pair_latency_s = 0;
    r->nodes = NULL; /* links between nodes are no faster than their level */
    set_pairs(r);
    if (r->n_tables == 0) return OK;
    TRY(ARENA_NEW(arena, r->n_tables, &table));
    for (int i = 0; i < r->n_tables; i++) table[i] = below(&r->table[i]);
    r->table = table;
    return OK;
}

/* The largest rate of the curves, if it is above *most. */
static void raise_keyed(const CostAttention *a, double *most)
{
    for (int i = 0; a && i < 2 * a->n; i++) {
        const CostCurve *c = i % 2 ? &a->backward[i / 2] : &a->forward[i / 2];
        for (int j = 0; j < c->n; j++)
            if (c->y[j] > *most) *most = c->y[j];
    }
}

Err ideal_cluster(const Cluster *c, Arena *arena, Cluster *out)
{
    CostRates *r = &out->rates;
    *out = *c;
    for (int t = 0; t < N_DTYPES; t++) {
        double *rate[] = {&r->flops_per_s[WORK_GEMM][t], &r->flops_per_s[WORK_ATTENTION][t]};
        const CostGrid *g = r->gemm[t];
        const CostCurve *a = r->attention[t];
        if (g) *rate[0] = fmax(*rate[0], cost_grid_most(g, &r->tiles));
        for (int i = 0; a && i < a->n; i++)
            if (a->y[i] > *rate[1]) *rate[1] = a->y[i];
        raise_keyed(r->keyed[t], rate[1]);
        r->flops_per_s[WORK_POINTWISE][t] = (double)INFINITY;
        r->gemm[t] = NULL;
        r->attention[t] = NULL;
        r->keyed[t] = NULL;
    }
    r->memory_Bps = r->host_Bps = (double)INFINITY;
    r->memory = NULL;
    r->launch_s = r->pair_bytes = r->epilogue = out->host_launch_s = 0;
    r->tiles = (CostTiles){0};
    out->host_member_s = out->slow_work = out->slow_transfer = 0;
    out->share_links = false; /* flows that are under way together on other machines may not be */
    return set_transfers(r, arena);
}

Err ideal_layout(const JobSettings *settings, const Cluster *ideal, Arena *temp, LayoutBound *out)
{
    const size_t mark = arena_mark(temp);
    double(*run_s)[N_PHASES];
    Job *job;
    TRY(ARENA_NEW(temp, 1, &job));
    TRY(job_compile(settings, temp, job));
    TRY(bound_check_classes(job->programs.n_classes));
    *out = (LayoutBound){.n = job->programs.n_classes};
    TRY(ARENA_NEW(temp, out->n, &run_s));
    TRY(clock_runs_alone(job, ideal, temp, run_s));
    for (int k = 0; k < out->n; k++) memcpy(out->class[k].run_s, run_s[k], sizeof run_s[k]);
    arena_rewind(temp, mark);
    return OK;
}
