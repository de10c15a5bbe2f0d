/* ideal.c -- the ideal machine, and the phases of a unit on one of its ranks. */
#include "plan/search/ideal.h"

#include <math.h>
#include <string.h>
#include "ir/pairs.h"
#include "schedule/traffic.h"

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

/* All pairs are as fast as the fastest. */
static void set_pairs(CostRates *r)
{
    double most = 0;
    const int n = r->pairs ? r->pairs->n * (r->pairs->n - 1) / 2 : 0;
    for (int i = 0; i < n; i++) most = fmax(most, (double)r->pairs->Bps[i]);
    for (int l = 0; l < r->n_levels && n > 0; l++) r->level[l].pair_Bps = most;
    r->pairs = NULL;
}

static Err set_transfers(CostRates *r, Arena *arena)
{
    CostTable *table;
    for (int i = 0; i < r->n_levels; i++) r->level[i].latency_s = 0;
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
        for (int i = 0; g && i < g->n_m * g->n_n * g->n_k; i++)
            if (g->rate[i] > *rate[0]) *rate[0] = g->rate[i];
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
    out->slow_work = out->slow_transfer = 0;
    return set_transfers(r, arena);
}

/* ---- one phase on one rank ---- */

enum { MAX_GROUPS = 16 };

typedef struct {
    const Cluster *c;
    double now;
    double *end, *seconds; /* [tensors]: of the transfer that makes the tensor */
    RankList group[MAX_GROUPS];
    double free[MAX_GROUPS]; /* end of the group's last transfer */
    int n_groups;
} IdealRank;

static bool same_group(RankList a, RankList b)
{
    return a.n == b.n && memcmp(a.rank, b.rank, (size_t)a.n * sizeof *a.rank) == 0;
}

/* Transfers of one group run one after another; of more than MAX_GROUPS groups, each by itself. */
static double *group_free(IdealRank *r, RankList group)
{
    int i = 0;
    while (i < r->n_groups && !same_group(r->group[i], group)) i++;
    if (i == MAX_GROUPS) return NULL;
    if (i == r->n_groups) {
        r->group[r->n_groups++] = group;
        r->free[i] = 0;
    }
    return &r->free[i];
}

static void begin(IdealRank *r, const Transfer *t, int tensor)
{
    const CostRates *rates = &r->c->rates;
    const Ref *whole = t->kind == COMM_ALL_GATHER || t->kind == COMM_RECV ? &t->to : &t->from;
    const double bytes = (double)whole->count * (double)dtype_bytes(whole->dtype);
    double *free = group_free(r, t->group), start = r->now;
    r->seconds[tensor] = cost_transfer_seconds(rates, t->kind, cost_group(rates, t->group), bytes);
    if (free && *free > start) start = *free;
    r->end[tensor] = start + r->seconds[tensor];
    if (free) *free = r->end[tensor];
}

static void wait(IdealRank *r, int tensor)
{
    if (!r->c->overlaps)
        r->now += r->seconds[tensor];
    else if (r->end[tensor] > r->now)
        r->now = r->end[tensor];
}

static Err play_phase(const Cluster *c, const Program *p, int phase, Arena *temp, double *out)
{
    const size_t mark = arena_mark(temp);
    IdealRank r = {.c = c};
    TRY(ARENA_NEW(temp, p->n_tensors + 1, &r.end));
    TRY(ARENA_NEW(temp, p->n_tensors + 1, &r.seconds));
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        const Instr *in = &p->instr[i];
        if (in->op == OP_wait) {
            wait(&r, in->in[0]);
        } else if (op_transfers(in->op)) {
            const Transfer t = instr_transfer(p, in);
            begin(&r, &t, in->out[0]);
        } else if (in->queue != QUEUE_D2H && in->queue != QUEUE_H2D) {
            CostWork w = cost_instr_work(p, in);
            if (op_attends(in->op)) w.heavy = in->flops;
            r.now += cost_work_seconds(&c->rates, &w);
        }
    }
    arena_rewind(temp, mark);
    *out = r.now;
    return OK;
}

Err ideal_layout(const JobSettings *settings, const Cluster *ideal, Arena *temp, LayoutBound *out)
{
    const size_t mark = arena_mark(temp);
    Job *job;
    TRY(ARENA_NEW(temp, 1, &job));
    TRY(job_compile(settings, temp, job));
    TRY(bound_check_classes(job->programs.n_classes));
    *out = (LayoutBound){.n = job->programs.n_classes};
    for (int k = 0; k < out->n; k++)
        for (int phase = 0; phase < N_PHASES; phase++)
            TRY(play_phase(ideal, &job->program[k], phase, temp, &out->class[k].run_s[phase]));
    arena_rewind(temp, mark);
    return OK;
}
