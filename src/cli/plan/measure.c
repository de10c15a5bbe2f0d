/* measure.c -- `sheaf plan --measure K`: runs the best K plans for a few steps, calibrates the
 * cluster by them, and plans again.
 *
 *     planned    measured   calibrated   plan
 *     12.1 ms    15.0 ms    14.8 ms      dp=2 ...
 *     12.4 ms    14.1 ms    14.2 ms      tp=2 ...       measured the fastest: it becomes the best
 *
 * run.c runs a plan. */
#include <string.h>

#include "base/clock.h"
#include "cli/plan/verb.h"

static bool same_plan(const PlanPoint *a, const PlanPoint *b, Arena *temp, Err *err)
{
    const char *x = NULL, *y = NULL;
    Text s = text_in(temp), t = text_in(temp);
    plan_point_text(a, &s);
    plan_point_text(b, &t);
    if (*err == OK) *err = text_done(&s, &x);
    if (*err == OK) *err = text_done(&t, &y);
    return *err == OK && strcmp(x, y) == 0 && !a->unit == !b->unit;
}

static Err measure_row(PlanVerb *v, const PlanRow *row)
{
    PlanReport *r = &v->report;
    Err err = OK;
    for (int i = 0; i < r->n_measured; i++)
        if (same_plan(&r->measured[i].row.point, &row->point, v->temp, &err) || err != OK)
            return err;
    if (r->n_measured == MAX_PLAN_ROWS) return OK;
    MeasuredPlan *m = &r->measured[r->n_measured];
    *m = (MeasuredPlan){.row = *row, .planned_s = row->time.step_s};
    progress_parts(&v->line, r->n_measured, v->measure + 1);
    TRY(plan_run(v, &row->point, &m->measured_s));
    r->n_measured++;
    return OK;
}

/* The cluster by all runs, whose plans were planned with the cluster of the file. */
static Err calibrate(PlanVerb *v, const Cluster *file)
{
    PlanReport *r = &v->report;
    MeasuredStep step[MAX_PLAN_ROWS];
    Cluster *scaled;
    for (int i = 0; i < r->n_measured; i++)
        step[i] = (MeasuredStep){r->measured[i].first, r->measured[i].measured_s};
    TRY(ARENA_NEW(v->arena, 1, &scaled));
    r->factors = calibrate_factors(step, r->n_measured);
    TRY(cluster_scale(file, r->factors, v->arena, scaled));
    r->cluster = v->space.cluster = scaled;
    *v->ordered = *scaled;
    return plan_cache_open(v->arena, &v->cache);
}

/* The row of a measured plan on the calibrated cluster. */
static Err time_row(PlanVerb *v, MeasuredPlan *m)
{
    PlanFixed fixed = v->space.fixed;
    PlanSearch s;
    TRY(plan_open_search(v, m->row.ranks, &fixed, &s));
    return plan_time(&s, &m->row.point, &m->row.time);
}

/* The plan whose run was the fastest becomes the first row. */
static void take_fastest(PlanReport *r)
{
    int best = 0;
    for (int i = 1; i < r->n_measured; i++)
        if (r->measured[i].measured_s < r->measured[best].measured_s) best = i;
    const PlanRow first = r->row[0];
    int n = 1;
    for (int i = 0; i < r->n_rows; i++)
        if (!plan_same_mesh(&r->row[i].point, &r->measured[best].row.point)) n++;
    for (int i = r->n_rows - 1, to = n - 1; i >= 0; i--)
        if (!plan_same_mesh(&r->row[i].point, &r->measured[best].row.point))
            r->row[to--] = r->row[i];
    r->n_rows = n;
    r->row[0] = r->measured[best].row;
    r->row[0].bound_s = first.bound_s;
    r->row[0].alike_s = r->row[0].point.unit ? first.alike_s : r->row[0].time.step_s;
    r->row[0].alike_bound_s = first.alike_bound_s;
    r->row[0].complete = first.bound_s >= r->row[0].time.step_s;
}

Err plan_measure(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const Cluster *file = v->space.cluster;
    const double start = now_s();
    if (!v->measure) return OK;
    v->line = progress_begin("measuring", r->model->name, 0);
    Err err = OK;
    for (int i = 0; i < r->n_rows && i < v->measure && err == OK; i++)
        err = measure_row(v, &r->row[i]);
    progress_end(&v->line);
    TRY(err);
    for (int i = 0; i < r->n_measured; i++) r->measured[i].first = r->measured[i].row.time;
    TRY(calibrate(v, file));
    r->measure_s = now_s() - start;
    TRY(plan_search_all(v));
    v->line = progress_begin("measuring", r->model->name, 0);
    err = measure_row(v, &r->row[0]); /* unless it was measured */
    progress_end(&v->line);
    TRY(err);
    for (int i = 0; i < r->n_measured; i++) TRY(time_row(v, &r->measured[i]));
    take_fastest(r);
    return OK;
}
