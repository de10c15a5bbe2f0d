/* json.c -- the report of `sheaf plan` as one JSON object, keys in the order in which they are
 * set.
 *
 *     version, sheaf, model, cluster, ranks, batch, limit_bytes, best, bound_ms, gap, certificate,
 *     alike, search_s, link_s, searched, plans, measured, frontier, frontier_step_bytes,
 *     frontier_complete, choice
 *
 * best: step_ms, clock_ms, memory_bytes, words, time, plan (the text of the plan file). */
#include "cli/explain/json.h"
#include "cli/plan/plan.h"
#include "cli/verbs.h"

static json_t *time_json(const CoarseTime *t)
{
    json_t *o = json_object();
    set(o, "work_ms", json_real(1e3 * t->work_s));
    set(o, "tp_ms", json_real(1e3 * t->tp_s));
    set(o, "cp_ms", json_real(1e3 * t->cp_s));
    set(o, "dp_ms", json_real(1e3 * t->dp_s));
    set(o, "pp_ms", json_real(1e3 * t->pp_s));
    set(o, "update_ms", json_real(1e3 * t->update_s));
    set(o, "host_ms", json_real(1e3 * t->host_s));
    set(o, "idle_ms", json_real(1e3 * t->idle_s));
    return o;
}

static Err row_json(const PlanRow *row, Arena *temp, json_t **out)
{
    json_t *o = json_object();
    const char *words;
    Text t = text_in(temp);
    plan_point_text(&row->point, &t);
    *out = o;
    TRY(text_done(&t, &words));
    set_count(o, "ranks", row->ranks);
    set(o, "step_ms", json_real(1e3 * row->time.step_s));
    set(o, "memory_bytes", json_integer((json_int_t)row->memory_bytes));
    set(o, "limit_bytes", json_integer((json_int_t)row->limit_bytes));
    set_text(o, "words", words);
    set(o, "time", time_json(&row->time));
    if (row->n_nodes > 0) {
        json_t *nodes = json_array();
        for (int i = 0; i < row->n_nodes; i++)
            json_array_append_new(nodes, json_integer(row->node_at[i]));
        set(o, "nodes", nodes);
        set(o, "links_ms", json_real(1e3 * row->links_s));
        set(o, "unordered_links_ms", json_real(1e3 * row->unordered_s));
    }
    return OK;
}

static Err rows_json(const PlanRow *row, int n, bool bounds, Arena *temp, json_t **out)
{
    *out = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = NULL;
        const Err err = row_json(&row[i], temp, &o);
        json_array_append_new(*out, o);
        TRY(err);
        if (bounds) set(o, "bound_ms", json_real(1e3 * row[i].bound_s));
    }
    return OK;
}

static Err best_json(const PlanReport *r, Arena *temp, json_t **out)
{
    TRY(row_json(&r->row[0], temp, out));
    set(*out, "clock_ms", json_real(1e3 * r->clock.step_s));
    set(*out, "memory_bytes", json_integer((json_int_t)r->memory_bytes));
    set_text(*out, "plan", r->plan);
    return OK;
}

static json_t *counts_json(const PlanReport *r)
{
    json_t *o = json_object();
    set_count(o, "plans", r->counts.nodes);
    set_count(o, "compiled", r->counts.compiled);
    set_count(o, "played", r->counts.played);
    set_count(o, "timed", r->counts.timed);
    set_count(o, "linked", r->counts.linked);
    set_count(o, "refused", r->counts.refused);
    set_count(o, "families", r->families);
    set_count(o, "bounded", r->bounded);
    set_count(o, "solved", r->solved);
    if (r->placed > 0) {
        set_count(o, "placed", r->placed);
        set_count(o, "splits", r->splits);
    }
    return o;
}

/* The best plan whose layers are alike, and its bound among such plans; null: none fits. */
static json_t *alike_json(const PlanReport *r)
{
    const PlanRow *best = &r->row[0];
    if (best->alike_s == 0) return json_null();
    json_t *o = json_object();
    set(o, "step_ms", json_real(1e3 * best->alike_s));
    set(o, "bound_ms", json_real(1e3 * best->alike_bound_s));
    set_text(o, "certificate", best->alike_bound_s >= best->alike_s ? "optimal" : "gap");
    return o;
}

static json_t *measured_json(const PlanReport *r)
{
    json_t *all = json_array();
    for (int i = 0; i < r->n_measured; i++) {
        const MeasuredPlan *m = &r->measured[i];
        json_t *o = json_object();
        set(o, "planned_ms", json_real(1e3 * m->planned_s));
        set(o, "measured_ms", json_real(1e3 * m->measured_s));
        set(o, "calibrated_ms", json_real(1e3 * m->row.time.step_s));
        json_array_append_new(all, o);
    }
    return all;
}

static Err fill(const PlanReport *r, Arena *temp, json_t *o)
{
    json_t *best = NULL, *plans = NULL, *frontier = NULL, *choice = NULL;
    set_count(o, "version", 1);
    set_text(o, "sheaf", SHEAF_VERSION);
    set_text(o, "model", r->model->name);
    set_text(o, "cluster", r->cluster->name);
    set_count(o, "ranks", r->row[0].ranks);
    set_count(o, "batch", r->config->batch_global);
    set(o, "limit_bytes", json_integer((json_int_t)r->limit_bytes));
    TRY(best_json(r, temp, &best));
    set(o, "best", best);
    set(o, "bound_ms", json_real(1e3 * r->row[0].bound_s));
    set(o, "gap", json_real(plan_gap(r)));
    set_text(o, "certificate", r->row[0].complete ? "optimal" : "gap");
    set(o, "alike", alike_json(r));
    set(o, "search_s", json_real(r->search_s));
    set(o, "link_s", json_real(r->link_s));
    set(o, "searched", counts_json(r));
    TRY(rows_json(r->row, r->n_rows, false, temp, &plans));
    set(o, "plans", plans);
    set(o, "measured", measured_json(r));
    TRY(rows_json(r->frontier, r->n_frontier, true, temp, &frontier));
    set(o, "frontier", frontier);
    set(o, "frontier_step_bytes", json_integer((json_int_t)r->frontier_step));
    set(o, "frontier_complete", json_boolean(!r->is_frontier_cut));
    if (r->n_choice > 0) TRY(row_json(&r->with_choice, temp, &choice));
    set(o, "choice", choice ? choice : json_null());
    if (r->choice && r->n_choice == 0) set_text(o, "no_choice", r->no_choice);
    return OK;
}

Err plan_report_json(const PlanReport *r, Arena *temp, Text *out)
{
    json_t *o = json_object();
    const Err err = fill(r, temp, o);
    if (err == OK) return json_text(o, out);
    json_decref(o);
    return err;
}
