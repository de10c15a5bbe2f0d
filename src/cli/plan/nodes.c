/* nodes.c -- the order of the nodes, on a cluster whose nodes differ.
 *
 *     search     all links as fast as their level, all devices as fast as the fastest: a bound of
 *                every plan in every order
 *     rows       the best plan of each mesh, each in its best order (plan/search/map.h); if devices
 *                differ, with the layers that its stages take (plan/search/stages.h)
 *     best       the row that is the fastest then */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/plan/verb.h"
#include "plan/search/stages.h"

/* Most plays of a step and most splits for one plan, by the ranks that each plays. */
enum { MAX_PLAYS = 400, RANKS_TO_PLAY = 25600, MIN_PLAYS = 40 };
enum { MAX_SPLITS = 400, RANKS_TO_SPLIT = 1024, MIN_SPLITS = 8 };

static int by_ranks(int budget, int ranks, int least, int most)
{
    const int n = budget / ranks;
    return n > most ? most : n < least ? least : n;
}

/* The cluster with all its links, calibrated if the rows are. */
static Err linked_cluster(PlanVerb *v, Cluster *out)
{
    const PlanReport *r = &v->report;
    *out = *v->linked;
    return r->n_measured ? cluster_scale(v->linked, r->factors, v->arena, out) : OK;
}

static void set_map(PlanRow *row, const NodeMap *map)
{
    row->node_at = map->at;
    row->n_nodes = map->n;
    row->links_s = map->step_s - map->alike_s;
    row->unordered_s = map->in_order_s - map->alike_s;
    row->time.step_s += row->links_s;
}

static Err place_row(PlanVerb *v, const Cluster *linked, PlanRow *row)
{
    const JobSettings job = plan_job(&v->space, &row->point);
    Mesh mesh;
    NodeMap map;
    TRY(mesh_sized(&job.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = linked, .job = &job, .mesh = &mesh};
    TRY(plan_map(&in, NULL, by_ranks(RANKS_TO_PLAY, row->ranks, MIN_PLAYS, MAX_PLAYS), v->arena,
                 v->temp, &map));
    set_map(row, &map);
    return OK;
}

/* The same with the layers of each stage; *fits is false if no order has room for the plan. */
static Err stage_row(PlanVerb *v, const Cluster *linked, double best_s, PlanRow *row, bool *fits)
{
    PlanReport *r = &v->report;
    PlanSearch s = plan_single(v, row->ranks, &v->space.fixed);
    StagePlan plan;
    const StageRequest request = {
        .search = &s,
        .cluster = linked,
        .limit_bytes = r->limit_bytes,
        .best_s = best_s,
        .max_plays = by_ranks(RANKS_TO_PLAY, row->ranks, MIN_PLAYS, MAX_PLAYS),
        .max_splits = by_ranks(RANKS_TO_SPLIT, row->ranks, MIN_SPLITS, MAX_SPLITS),
        .keeps_split = v->space.fixed.by_cost != -1 || r->n_measured > 0};
    TRY(plan_stages(&request, &row->point, &plan));
    r->placed++;
    r->splits += plan.splits;
    *fits = plan.map.step_s < (double)INFINITY;
    if (!*fits) return OK;
    row->point = plan.point;
    row->memory_bytes = plan.memory_bytes;
    set_map(row, &plan.map);
    return OK;
}

static void sort_rows(PlanRow *row, int n)
{
    for (int i = 1; i < n; i++) {
        const PlanRow moved = row[i];
        int at = i;
        for (; at > 0 && moved.time.step_s < row[at - 1].time.step_s; at--) row[at] = row[at - 1];
        row[at] = moved;
    }
}

static Err nothing_fits(const PlanReport *r)
{
    return err_fail(ERR_CONFIG,
                    "plan: none of %d plans fits the devices of all nodes, some of which have less "
                    "memory: use more ranks (--gpus), a smaller data.seq_len, or nodes with more "
                    "memory (node_devices)",
                    r->placed);
}

/* The best time of rows whose layers are alike; 0: there are none. */
static double best_alike(const PlanReport *r)
{
    double best = 0;
    for (int i = 0; i < r->n_rows; i++)
        if (!r->row[i].point.unit && (best == 0 || r->row[i].time.step_s < best))
            best = r->row[i].time.step_s;
    return best;
}

static bool has_mesh(const PlanReport *r, const PlanPoint *p)
{
    for (int i = 0; i < r->n_rows; i++)
        if (plan_same_mesh(&r->row[i].point, p)) return true;
    return false;
}

/* Keeps the best row of each mesh, and of these as many as the report shows. The others are among
 * the meshes that are left, which `bound_s` bounds. */
static void keep_rows(PlanVerb *v, double bound_s)
{
    PlanReport *r = &v->report;
    const int n = r->n_rows;
    r->n_rows = 0;
    for (int i = 0; i < n; i++) {
        const PlanRow row = r->row[i];
        const double least_s = row.time.step_s - row.links_s;
        if (has_mesh(r, &row.point)) continue;
        if (r->n_rows < v->shown)
            r->row[r->n_rows++] = row;
        else
            bound_s = fmin(bound_s, least_s);
    }
    r->meshes_left = r->meshes - r->n_rows;
    if (bound_s < (double)INFINITY && (r->left_s == 0 || bound_s < r->left_s)) r->left_s = bound_s;
}

/* The row in no order is faster: its work takes as long in all, and the ranks do it at no more than
 * the sum of their speeds. With a split of its own it may be. */
static double least_seconds(const PlanRow *row, const Cluster *linked)
{
    return fmax(row->time.step_s,
                row->time.work_s * row->ranks / cost_speeds(&linked->rates, row->ranks));
}

/* Places rows, but not those that are no faster than the best so far with the split they have. */
static Err stage_rows(PlanVerb *v, const Cluster *linked)
{
    PlanReport *r = &v->report;
    const int n = r->n_measured ? 1 : r->n_rows;
    double best_s = (double)INFINITY, left_s = (double)INFINITY;
    sort_rows(r->row, n);
    r->n_rows = r->placed = r->splits = 0;
    for (int i = 0; i < n; i++) {
        PlanRow row = r->row[i];
        bool fits = false;
        if (least_seconds(&row, linked) >= best_s) {
            left_s = fmin(left_s, row.time.step_s);
            continue;
        }
        TRY(stage_row(v, linked, best_s, &row, &fits));
        if (fits) r->row[r->n_rows++] = row;
        if (fits) best_s = fmin(best_s, row.time.step_s);
    }
    if (r->n_rows == 0) return nothing_fits(r);
    sort_rows(r->row, r->n_rows);
    keep_rows(v, left_s);
    return OK;
}

/* True if plans may have splits that the search did not bound: those dealt to uneven stages. */
static bool has_own_splits(const PlanVerb *v, const Cluster *linked, int ranks)
{
    const int each = linked->rates.level[0].ranks;
    const CostDevice first = cost_device(&linked->rates, 0);
    const double bytes = cluster_memory_bytes(linked, 0);
    bool differ = false;
    for (int rank = each; rank < ranks; rank += each)
        differ = differ || cost_device(&linked->rates, rank).speed != first.speed ||
                 cluster_memory_bytes(linked, rank) != bytes;
    return differ && v->space.fixed.by_cost == -1 && v->space.fixed.pp != 1;
}

/* No plan does less work than the flops of GEMMs and attention at their best rates, and the ranks
 * do it at no more than the sum of their speeds. A bound of the machine with the fastest devices
 * holds too if plans keep the splits that it counts, and no later transfer may make a step shorter:
 * it slows down work or other transfers beside it. */
static Err uneven_bounds(PlanVerb *v, const Cluster *linked, double *bound_s, double *alike_bound_s)
{
    PlanReport *r = &v->report;
    PlanSearch s = plan_single(v, r->row[0].ranks, &v->space.fixed);
    const bool rises = linked->slow_work <= 1 && linked->slow_transfer <= 1 && !linked->share_links;
    const bool holds = rises && !has_own_splits(v, linked, r->row[0].ranks);
    double work_s;
    TRY(plan_least_work(&s, &work_s));
    r->speeds = cost_speeds(&linked->rates, r->row[0].ranks);
    work_s /= r->speeds;
    *bound_s = holds ? fmax(*bound_s, work_s) : work_s;
    *alike_bound_s = holds ? fmax(*alike_bound_s, work_s) : work_s;
    if (!holds) r->left_s = work_s;
    return OK;
}

static Err place_choice(PlanVerb *v, const Cluster *linked)
{
    PlanReport *r = &v->report;
    PlanRow *row = &r->with_choice;
    const int before[] = {r->placed, r->splits};
    bool fits = true;
    if (r->n_choice == 0) return OK;
    if (cluster_has_devices(linked)) TRY(stage_row(v, linked, (double)INFINITY, row, &fits));
    r->placed = before[0];
    r->splits = before[1];
    if (fits) return OK;
    r->n_choice = 0;
    r->no_choice = "its best plan does not fit the devices of all nodes";
    return OK;
}

Err plan_place_nodes(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const PlanRow first = r->row[0];
    const int rows = r->n_measured ? 1 : r->n_rows;
    const bool uneven = v->linked && cluster_has_devices(v->linked);
    double bound_s = first.bound_s, alike_bound_s = first.alike_bound_s;
    Cluster *linked;
    if (!v->linked || (!uneven && first.ranks <= v->linked->rates.level[0].ranks)) return OK;
    TRY(ARENA_NEW(v->arena, 1, &linked));
    TRY(linked_cluster(v, linked));
    for (int i = 0; i < rows && !uneven; i++) TRY(place_row(v, linked, &r->row[i]));
    if (uneven) TRY(stage_rows(v, linked));
    if (uneven) TRY(uneven_bounds(v, linked, &bound_s, &alike_bound_s));
    TRY(place_choice(v, linked));
    if (rows > 1 && !uneven) sort_rows(r->row, r->n_rows);
    PlanRow *best = &r->row[0];
    best->bound_s = bound_s;
    best->alike_bound_s = alike_bound_s;
    best->alike_s = best_alike(r);
    best->complete = best->bound_s >= best->time.step_s;
    r->is_placed = true;
    /* From here on, the plan is timed on these links and devices in this order. */
    return cluster_ordered(linked, best->node_at, best->n_nodes, v->arena, v->ordered);
}

Err plan_set_nodes(const PlanRow *row, Arena *a, Config *c)
{
    bool in_order = true;
    const char *text;
    Text t = text_in(a);
    for (int i = 0; i < row->n_nodes; i++) {
        text_add(&t, "%s%d", i ? "," : "", row->node_at[i]);
        in_order = in_order && row->node_at[i] == i;
    }
    if (in_order) return OK;
    TRY(text_done(&t, &text));
    return key_set(KEY_mesh_nodes, &(WrittenValue){.text = text, .origin = "plan"}, a, c);
}
