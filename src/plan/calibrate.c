/* calibrate.c -- two factors by Gauss-Newton on log time, and clusters whose rates are scaled. */
#include "plan/calibrate.h"

#include <math.h>

/* A factor of e costs as much as a misfit of PRIOR in one log time. */
static const double PRIOR = 0.1;
enum { ROUNDS = 50 };

static double work_of(const CoarseTime *t)
{
    return t->work_s + t->update_s + t->host_s + t->pp_s + t->idle_s;
}

static double transfers_of(const CoarseTime *t) { return t->tp_s + t->cp_s + t->dp_s; }

/* log(x[0]), log(x[1]): one step of Gauss-Newton. */
static void improve(const MeasuredStep *step, int n, double *x)
{
    double h00 = PRIOR * PRIOR, h01 = 0, h11 = PRIOR * PRIOR;
    double g0 = PRIOR * PRIOR * x[0], g1 = PRIOR * PRIOR * x[1];
    for (int i = 0; i < n; i++) {
        const double work = exp(x[0]) * work_of(&step[i].planned),
                     transfers = exp(x[1]) * transfers_of(&step[i].planned);
        const double sum = work + transfers, miss = log(sum / step[i].measured_s);
        const double a = work / sum, b = transfers / sum;
        h00 += a * a;
        h01 += a * b;
        h11 += b * b;
        g0 += a * miss;
        g1 += b * miss;
    }
    const double det = h00 * h11 - h01 * h01;
    x[0] -= (h11 * g0 - h01 * g1) / det;
    x[1] -= (h00 * g1 - h01 * g0) / det;
}

ClusterFactors calibrate_factors(const MeasuredStep *step, int n)
{
    double x[2] = {0, 0};
    for (int i = 0; i < ROUNDS; i++) improve(step, n, x);
    return (ClusterFactors){exp(x[0]), exp(x[1])};
}

static void scale_link(CostLink *l, double factor)
{
    l->latency_s *= factor;
    l->Bps /= factor;
    l->pair_latency_s *= factor;
    l->pair_Bps /= factor;
}

static Err scale_curve(const CostCurve **at, double factor, Arena *arena)
{
    CostCurve *c;
    if (!*at) return OK;
    TRY(ARENA_NEW(arena, 1, &c));
    *c = **at;
    for (int i = 0; i < c->n; i++) c->y[i] *= factor;
    *at = c;
    return OK;
}

static Err scale_keyed(const CostAttention **at, double factor, Arena *arena)
{
    CostAttention *a;
    if (!*at) return OK;
    TRY(ARENA_NEW(arena, 1, &a));
    *a = **at;
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < MAX_CURVE; j++) {
            a->forward[i].y[j] *= factor;
            a->backward[i].y[j] *= factor;
        }
    *at = a;
    return OK;
}

static Err scale_grid(const CostGrid **at, double factor, Arena *arena)
{
    CostGrid *g;
    double *rate;
    if (!*at) return OK;
    const int n = (*at)->n_m * (*at)->n_n * (*at)->n_k;
    TRY(ARENA_NEW(arena, 1, &g));
    TRY(ARENA_NEW(arena, n, &rate));
    for (int i = 0; i < n; i++) rate[i] = (*at)->rate[i] * factor;
    *g = **at;
    g->rate = rate;
    *at = g;
    return OK;
}

static Err scale_nodes(const CostNodes **at, double factor, Arena *arena)
{
    CostNodes *nodes;
    CostLink *link;
    if (!*at) return OK;
    TRY(ARENA_NEW(arena, 1, &nodes));
    TRY(ARENA_NEW(arena, (*at)->n_links, &link));
    *nodes = **at;
    for (int i = 0; i < nodes->n_links; i++) {
        link[i] = nodes->link[i];
        scale_link(&link[i], factor);
    }
    nodes->link = link;
    *at = nodes;
    return OK;
}

static Err scale_pairs(const CostPairs **at, double factor, Arena *arena)
{
    CostPairs *p;
    float *latency, *Bps;
    if (!*at) return OK;
    const int n = (*at)->n * ((*at)->n - 1) / 2;
    TRY(ARENA_NEW(arena, 1, &p));
    TRY(ARENA_NEW(arena, n, &latency));
    TRY(ARENA_NEW(arena, n, &Bps));
    for (int i = 0; i < n; i++) {
        latency[i] = (float)((double)(*at)->latency_s[i] * factor);
        Bps[i] = (float)((double)(*at)->Bps[i] / factor);
    }
    *p = (CostPairs){(*at)->n, latency, Bps};
    *at = p;
    return OK;
}

static Err scale_tables(CostRates *r, double factor, Arena *arena)
{
    CostTable *table;
    if (r->n_tables == 0) return OK;
    TRY(ARENA_NEW(arena, r->n_tables, &table));
    for (int i = 0; i < r->n_tables; i++) {
        table[i] = r->table[i];
        for (int k = 0; k < table[i].seconds.n; k++) table[i].seconds.y[k] *= factor;
    }
    r->table = table;
    return OK;
}

Err cluster_scale(const Cluster *c, ClusterFactors f, Arena *arena, Cluster *out)
{
    CostRates *r = &out->rates;
    *out = *c;
    for (int t = 0; t < N_DTYPES; t++) {
        for (int k = 0; k < N_WORK_CLASSES; k++) r->flops_per_s[k][t] /= f.work;
        TRY(scale_grid(&r->gemm[t], 1 / f.work, arena));
        TRY(scale_curve(&r->attention[t], 1 / f.work, arena));
        TRY(scale_keyed(&r->keyed[t], 1 / f.work, arena));
    }
    r->memory_Bps /= f.work;
    r->host_Bps /= f.work;
    r->launch_s *= f.work;
    out->host_launch_s *= f.work;
    out->host_member_s *= f.work;
    TRY(scale_curve(&r->memory, 1 / f.work, arena));
    for (int i = 0; i < r->n_levels; i++) scale_link(&r->level[i], f.transfers);
    TRY(scale_nodes(&r->nodes, f.transfers, arena));
    TRY(scale_pairs(&r->pairs, f.transfers, arena));
    return scale_tables(r, f.transfers, arena);
}
