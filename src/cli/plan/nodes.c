/* nodes.c -- the order of the nodes, on a cluster whose links between nodes differ.
 *
 *     search     all links as fast as their level        a bound of every plan in every order
 *     rows       the best plan of each mesh, each in its best order (plan/search/map.h)
 *     best       the row that is the fastest then */
#include <stdio.h>
#include <string.h>

#include "cli/plan/verb.h"
#include "plan/search/map.h"

/* Most plays of a step for one plan, by the ranks that each plays. */
enum { MAX_PLAYS = 400, RANKS_TO_PLAY = 25600, MIN_PLAYS = 40 };

/* The cluster with all its links, calibrated if the rows are. */
static Err linked_cluster(PlanVerb *v, Cluster *out)
{
    const PlanReport *r = &v->report;
    *out = *v->linked;
    return r->n_measured ? cluster_scale(v->linked, r->factors, v->arena, out) : OK;
}

static Err place_row(PlanVerb *v, const Cluster *linked, PlanRow *row)
{
    const JobSettings job = plan_job(&v->space, &row->point);
    const int plays = RANKS_TO_PLAY / row->ranks;
    Mesh mesh;
    NodeMap map;
    TRY(mesh_sized(&job.parallel.mesh, &mesh));
    const ClockInput in = {.cluster = linked, .job = &job, .mesh = &mesh};
    TRY(plan_map(&in, NULL,
                 plays > MAX_PLAYS   ? MAX_PLAYS
                 : plays < MIN_PLAYS ? MIN_PLAYS
                                     : plays,
                 v->arena, v->temp, &map));
    row->node_at = map.at;
    row->n_nodes = map.n;
    row->links_s = map.step_s - map.alike_s;
    row->unordered_s = map.in_order_s - map.alike_s;
    row->time.step_s += row->links_s;
    return OK;
}

static void sort_rows(PlanReport *r)
{
    for (int i = 1; i < r->n_rows; i++) {
        const PlanRow row = r->row[i];
        int at = i;
        for (; at > 0 && row.time.step_s < r->row[at - 1].time.step_s; at--)
            r->row[at] = r->row[at - 1];
        r->row[at] = row;
    }
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

Err plan_place_nodes(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const PlanRow first = r->row[0];
    const int rows = r->n_measured ? 1 : r->n_rows;
    Cluster *linked;
    if (!v->linked || first.ranks <= v->linked->rates.level[0].ranks) return OK;
    TRY(ARENA_NEW(v->arena, 1, &linked));
    TRY(linked_cluster(v, linked));
    for (int i = 0; i < rows; i++) TRY(place_row(v, linked, &r->row[i]));
    if (rows > 1) sort_rows(r);
    PlanRow *best = &r->row[0];
    best->bound_s = first.bound_s;
    best->alike_bound_s = first.alike_bound_s;
    best->alike_s = best_alike(r);
    best->complete = best->bound_s >= best->time.step_s;
    r->is_placed = true;
    /* From here on, the plan is timed on these links in this order. */
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
