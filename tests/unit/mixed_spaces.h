/* mixed_spaces.h -- plans whose layers differ, in spaces small enough to time all of them. */
#ifndef UNIT_MIXED_SPACES_H
#define UNIT_MIXED_SPACES_H

#include <math.h>
#include <stdlib.h>

#include "plan_spaces.h"
#include "plan/search/mixed.h"
#include "plan/search/parts.h"

typedef struct {
    PlanPoint point;
    double step_s, least_bytes; /* by the coarse clock: linked programs need no less */
} KnownMixed;

typedef struct {
    KnownMixed *at;
    int n, cap;
} KnownList;

static inline int by_step(const void *a, const void *b)
{
    const KnownMixed *x = a, *y = b;
    return x->step_s < y->step_s ? -1 : x->step_s > y->step_s;
}

/* Times all values of the units from `unit` on. */
static inline void know_units(SmallSpace *t, PlanPoint *p, UnitOptions *o, int unit, KnownList *l)
{
    const PlanFixed *f = &t->s.space.fixed;
    if (unit == p->n_units) {
        KnownMixed *k = &l->at[l->n];
        CoarseTime time;
        UnitOptions *copy;
        const Err err = plan_time(&t->s, p, &time);
        if (err != OK && err != ERR_CONFIG) fail_msg("%s", err_text());
        if (err != OK) return;
        assert_true(l->n < l->cap);
        DO(ARENA_NEW(&t->arena, p->n_units, &copy));
        memcpy(copy, o, (size_t)p->n_units * sizeof *o);
        *k = (KnownMixed){*p, time.step_s, (double)time.least_bytes};
        k->point.unit = copy;
        l->n++;
        return;
    }
    const bool layer = unit > 0 && unit < p->n_units - 1;
    const int zeros = plan_dp(p) * p->mesh.cp > 1 ? 3 : 0;
    for (int z = 0; z <= zeros; z++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
            if ((f->zero >= 0 && z != f->zero) || (f->recompute >= 0 && r != f->recompute))
                continue;
            if (!layer && f->recompute < 0 && r != RECOMPUTE_NONE) continue;
            o[unit].zero = z;
            o[unit].recompute = (Recompute)r;
            know_units(t, p, o, unit + 1, l);
        }
}

/* All plans of the space, the fastest first. A family's nodes follow each other. */
static inline void know_mixed(SmallSpace *t, KnownList *l)
{
    const PlanPoint *before = NULL;
    l->cap = 200000;
    l->n = 0;
    DO(ARENA_NEW(&t->arena, l->cap, &l->at));
    for (int i = 0; i < t->s.n; i++) {
        PlanPoint p = t->s.node[i].point;
        const JobSettings job = plan_job(&t->s.space, &p);
        UnitOptions o[16];
        const bool same = before && memcmp(&before->mesh, &p.mesh, sizeof p.mesh) == 0 &&
                          before->schedule == p.schedule && before->chunks == p.chunks &&
                          before->context == p.context && before->sequence == p.sequence &&
                          before->micro == p.micro;
        before = &t->s.node[i].point;
        if (same) continue;
        p.n_units = (int)t->config.n_layers + 2;
        p.unit = o;
        for (int u = 0; u < p.n_units; u++) o[u] = job_unit_options(t->s.space.base, u);
        for (int u = 0; u < p.n_units; u++) o[u].sequence = job.parallel.sequence;
        for (int u = 0; u < p.n_units; u++) o[u].context = job.parallel.context;
        know_units(t, &p, o, 0, l);
    }
    qsort(l->at, (size_t)l->n, sizeof *l->at, by_step);
}

/* The time of the fastest plan that fits, and the bytes that it needs. */
static inline double best_mixed(SmallSpace *t, const KnownList *l, double limit, double *bytes)
{
    for (int i = 0; i < l->n; i++) {
        if (l->at[i].least_bytes > limit) continue;
        const Err err = plan_link(&t->s, &l->at[i].point, bytes);
        if (err != OK && err != ERR_CONFIG) fail_msg("%s", err_text());
        if (err == OK && *bytes <= limit) return l->at[i].step_s;
    }
    return HUGE_VAL;
}

/* The plan with the units that the run would have: their GEMMs in FP8 are the run's. */
static inline PlanPoint as_run(SmallSpace *t, const PlanPoint *p)
{
    UnitOptions *unit;
    PlanPoint q = *p;
    DO(ARENA_NEW(&t->arena, p->n_units, &unit));
    for (int u = 0; u < p->n_units; u++) {
        unit[u] = p->unit[u];
        unit[u].fp8_names = job_unit_options(t->s.space.base, u).fp8_names;
    }
    q.unit = unit;
    return q;
}

/* The found plan needs what the planner says, and takes what it says. */
static inline void check_found(SmallSpace *t, const MixedPlan *m)
{
    const PlanPoint run = as_run(t, &m->point);
    CoarseTime time;
    double bytes;
    DO(plan_time(&t->s, &run, &time));
    DO(plan_link(&t->s, &run, &bytes));
    if (bytes != m->memory_bytes)
        fail_msg("the plan is said to need %.0f bytes, its run needs %.0f", m->memory_bytes, bytes);
    if (time.step_s != m->time.step_s)
        fail_msg("the plan is said to take %.9g s, its run takes %.9g", m->time.step_s,
                 time.step_s);
}

/* The planner's answer is the optimum of brute force or within its gap, and fits. Returns the
 * number of limits at which plans whose layers differ are faster. */
static inline int check_mixed(int n, const PlanFixed *given)
{
    static const double share[] = {1, 0.85, 0.7, 0.55};
    SmallSpace known, t;
    KnownList list;
    double most = 0;
    int faster = 0;
    PlanFixed fixed = *given;
    fixed.keeps_offload = true; /* brute force has none */
    open_small(&known, n, &fixed);
    open_small(&t, n, &fixed);
    know_mixed(&known, &list);
    assert_true(list.n > 20);
    for (int i = 0; i < 4; i++) {
        const double limit = i == 0 ? 1e12 : most * share[i];
        double bytes;
        const double best = best_mixed(&known, &list, limit, &bytes);
        PlanRanking r;
        MixedPlan m;
        DO(plan_search(&t.s, limit, 1, false, &r));
        const double alike = r.n ? t.s.node[r.node[0]].key_s : HUGE_VAL;
        const MixedRequest request = {limit, alike, 100000, 100000,
                                      r.n ? &t.s.node[r.node[0]].point : NULL};
        DO(plan_mixed(&t.s, &request, &m));
        const double answer = m.found ? m.time.step_s : alike;
        if (i == 0) most = bytes;
        if (m.found) assert_true(m.memory_bytes <= limit && answer < alike);
        if (m.found) check_found(&known, &m);
        if (m.bound_s > best * (1 + 1e-12))
            fail_msg("space %d, limit %g: bound %.9g s, but a plan takes %.9g s", n, limit,
                     m.bound_s, best);
        if (answer < best * (1 - 1e-12))
            fail_msg("space %d, limit %g: %.9g s is faster than all plans, %.9g s", n, limit,
                     answer, best);
        faster += m.found;
    }
    close_small(&t);
    close_small(&known);
    return faster;
}

#endif
