/* text.c -- the report of `sheaf plan` as text. */
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "cli/config/job.h"
#include "cli/plan/plan.h"
#include "cli/progress.h"
#include "cli/table.h"

double plan_objective(const PlanReport *r, const PlanRow *row)
{
    const Cluster *c = r->cluster;
    const CoarseTime *t = &row->time;
    switch (r->objective) {
    case OBJECTIVE_COST:
        return t->step_s * row->ranks * c->price_per_hour / 3600;
    case OBJECTIVE_ENERGY:
        return row->ranks * (c->idle_watt * t->step_s + (c->busy_watt - c->idle_watt) * t->work_s);
    default:
        return t->step_s;
    }
}

double plan_gap(const PlanReport *r)
{
    const PlanRow *best = &r->row[0];
    return best->complete ? 0 : (best->time.step_s - best->bound_s) / best->time.step_s;
}

static Err point_text(const PlanPoint *p, Arena *temp, const char **out)
{
    Text t = text_in(temp);
    plan_point_text(p, &t);
    return text_done(&t, out);
}

/* Where the time of a plan is longer than that of the best one: the greatest difference. */
static void why_text(const PlanReport *r, const PlanRow *row, char *out, size_t bytes)
{
    const PlanRow *best_row = &r->row[0];
    const CoarseTime *t = &row->time, *best = &best_row->time;
    const char *tp = model_has_experts(r->model) ? "exposed transfers along tp and to experts"
                                                 : "exposed transfers along tp";
    const struct {
        const char *what;
        double more;
    } part[] = {{"work", t->work_s - best->work_s},
                {tp, t->tp_s - best->tp_s},
                {"exposed transfers along cp", t->cp_s - best->cp_s},
                {"gathers and reductions", t->dp_s - best->dp_s},
                {"bubble and sends between stages", t->pp_s - best->pp_s},
                {"norm and update", t->update_s - best->update_s},
                {"launches by the host", t->host_s - best->host_s},
                {"idle ranks", t->idle_s - best->idle_s},
                {"links and devices of nodes", row->links_s - best_row->links_s}};
    int most = 0;
    for (int i = 1; i < (int)(sizeof part / sizeof *part); i++)
        if (part[i].more > part[most].more) most = i;
    snprintf(out, bytes, "%s +%.3g ms", part[most].what, 1e3 * part[most].more);
}

static Err rows_text(const PlanReport *r, Arena *temp, Text *out)
{
    TextTable t;
    TRY(table_open(&t, 5, r->n_rows + 1, temp));
    for (int i = 0; i < 3; i++) table_right(&t, i);
    table_cell(&t, "ms");
    table_cell(&t, "slower");
    table_cell(&t, "memory");
    table_cell(&t, "plan");
    table_cell(&t, "why it loses");
    for (int i = 0; i < r->n_rows; i++) {
        const PlanRow *row = &r->row[i], *best = &r->row[0];
        char memory[24], why[80] = "";
        const char *words;
        TRY(point_text(&row->point, temp, &words));
        if (i > 0) why_text(r, row, why, sizeof why);
        table_cell(&t, "%.3f", 1e3 * row->time.step_s);
        if (i == 0)
            table_cell(&t, "best");
        else
            table_cell(&t, "%.1f%%", 100 * (row->time.step_s / best->time.step_s - 1));
        table_cell(&t, "%s", text_bytes((int64_t)row->memory_bytes, memory));
        table_cell(&t, "%s", words);
        table_cell(&t, "%s", why);
    }
    text_add(out, "\nPLANS, the best of each mesh\n");
    table_text(&t, "  ", out);
    if (r->meshes_left > 0 && r->left_s > 0)
        text_add(out, "  %d other meshes: none is faster than %.3f ms\n", r->meshes_left,
                 1e3 * r->left_s);
    else if (r->meshes_left > 0)
        text_add(out, "  %d other meshes: no plan of theirs fits\n", r->meshes_left);
    return OK;
}

static void limit_text(const PlanReport *r, Text *t)
{
    text_add(t, "                %s\n",
             r->placed > 0  ? "no bound has the order of the nodes, whose devices differ"
             : r->is_placed ? "no bound has the links between nodes that are slower than others"
             : r->n_measured > 0
                 ? "a plan that is faster by the calibrated rates measured slower, or "
                   "the search ended after its limit of nodes"
             : r->loose_bound ? "a lower bound was above the time that it bounds, by this much"
                              : "the search ended after its limit of nodes (--nodes)");
}

/* How good the best plan whose layers are alike is, of all such plans. */
static void alike_text(const PlanReport *r, Text *t)
{
    const PlanRow *best = &r->row[0];
    const char *scope = r->mixes ? " if all layers are alike" : "";
    char a[COUNT_BYTES];
    if (best->alike_bound_s >= best->alike_s) {
        text_add(t,
                 "optimal under this cost model%s: each of the %s plans\n                of the "
                 "space has a lower bound that is no better, is refused by the compiler, or does "
                 "not fit\n",
                 scope, grouped_digits(r->points, a));
    } else {
        text_add(t,
                 "within %.2f%% of the optimum under this cost model%s: no plan is faster than "
                 "%.3f ms;\n",
                 100 * (1 - best->alike_bound_s / best->alike_s), scope, 1e3 * best->alike_bound_s);
        limit_text(r, t);
    }
}

/* Of plans whose layers may differ; those whose layers are alike are among them. */
static void mixed_text(const PlanReport *r, Text *t)
{
    const PlanRow *best = &r->row[0];
    if (best->complete)
        text_add(t, "optimal under this cost model, also if layers differ\n");
    else
        text_add(t,
                 "within %.2f%% of the optimum under this cost model if layers may differ: no plan "
                 "is faster than %.3f ms\n",
                 100 * plan_gap(r), 1e3 * best->bound_s);
}

static void certificate_text(const PlanReport *r, Text *t)
{
    const PlanRow *best = &r->row[0];
    text_add(t, "  certificate   ");
    if (best->point.unit == NULL) alike_text(r, t);
    if (r->mixes && best->point.unit == NULL) text_add(t, "                ");
    if (r->mixes) mixed_text(r, t);
    if (best->point.unit && best->alike_s == 0 && r->placed == 0)
        text_add(t, "                no plan whose layers are alike fits\n");
    if (best->point.unit && best->alike_s > 0)
        text_add(
            t, "                the best plan whose layers are alike takes %.3f ms, %.2f%% more\n",
            1e3 * best->alike_s, 100 * (best->alike_s / best->time.step_s - 1));
}

static void search_text(const PlanReport *r, Text *t)
{
    const SearchCounts *c = &r->counts;
    char a[COUNT_BYTES];
    text_add(t, "  search        %s plans; %d compilations, %d played, %d timed, %d linked; ",
             grouped_digits(c->nodes, a), c->compiled, c->played, c->timed, c->linked);
    text_add(t, "%.1f s, and %.1f s to link and time the best\n", r->search_s, r->link_s);
    if (r->mixes)
        text_add(
            t,
            "                %s families of plans whose layers differ; %d bounded by knapsacks, "
            "%d solved\n",
            grouped_digits(r->families, a), r->bounded, r->solved);
}

static void nodes_text(const PlanReport *r, Text *t)
{
    const PlanRow *best = &r->row[0];
    char a[COUNTED_BYTES], b[COUNTED_BYTES];
    if (best->n_nodes == 0) return;
    text_add(t, "  nodes        ");
    for (int i = 0; i < best->n_nodes; i++) text_add(t, " %d", best->node_at[i]);
    if (r->placed == 0) {
        text_add(t, "; slow links between them cost %.3f ms, and %.3f ms in the order of numbers\n",
                 1e3 * best->links_s, 1e3 * best->unordered_s);
        return;
    }
    text_add(t,
             "; their devices and links cost %.3f ms, and %.3f ms in the order of numbers\n"
             "                without a split for them; %s placed, with %s\n",
             1e3 * best->links_s, 1e3 * best->unordered_s, text_counted(r->placed, "plan", a),
             text_counted(r->splits, "split", b));
}

/* The bound on the rows of experts, if a routing may break it: then the run ends, or takes more
 * time than the plan says. */
static void routing_text(const PlanReport *r, const PlanRow *best, Text *t)
{
    const Config *c = r->config;
    const ExpertConfig *x = &r->model->experts;
    const int ep = best->point.mesh.ep;
    if (model_has_experts(r->model)) text_add(t, "  routing       taken to be balanced\n");
    if (ep <= 1 || x->capacity > 0) return;
    const double most = (double)min_i64(x->chosen, x->n / ep) * ep / (double)x->chosen;
    if (c->parallel_expert_rows <= 0 || c->parallel_expert_rows >= most) return;
    text_add(t,
             "  rows          room for %g times the even share of an expert rank "
             "(parallel.expert_rows); routing that\n                needs more ",
             c->parallel_expert_rows);
    if (c->parallel_overflow == OVERFLOW_ROUNDS)
        text_add(t, "takes further rounds, which the time of the plan does not have\n");
    else
        text_add(t, "ends the run; 0 is room for any, and on CPUs there is "
                    "parallel.overflow=rounds\n");
}

static void best_text(const PlanReport *r, Text *t)
{
    const PlanRow *best = &r->row[0];
    const CoarseTime *c = &best->time;
    const double tokens = (double)(r->config->batch_global * r->config->data_seq_len);
    const double peak = r->cluster->peak_flops_per_s[config_precision(r->config)->storage];
    char a[COUNTED_BYTES], b[24], n[24];
    text_add(t, "\nBEST PLAN for %s of %s\n", text_counted(best->ranks, "rank", a),
             r->cluster->name);
    text_add(t, "  step          %.3f ms; %.3f ms by the clock of `sheaf simulate`\n",
             1e3 * c->step_s, 1e3 * r->clock.step_s);
    text_add(t, "  tokens/s      %s\n", text_count(tokens / c->step_s, n));
    if (peak > 0)
        text_add(t, "  mfu           %.1f%% of peak\n",
                 100 * r->clock.model_flops /
                     (c->step_s * peak * (r->speeds > 0 ? r->speeds : best->ranks)));
    text_add(t, "  memory        %s of %s on the rank that needs most, exact\n",
             text_bytes((int64_t)r->memory_bytes, a), text_bytes((int64_t)r->limit_bytes, b));
    text_add(t,
             "  time          work %.1f, tp %.1f, cp %.1f, dp %.1f, pp %.1f, update %.1f, host "
             "%.1f, idle %.1f ms\n",
             1e3 * c->work_s, 1e3 * c->tp_s, 1e3 * c->cp_s, 1e3 * c->dp_s, 1e3 * c->pp_s,
             1e3 * c->update_s, 1e3 * c->host_s, 1e3 * c->idle_s);
    routing_text(r, best, t);
    nodes_text(r, t);
    if (r->objective == OBJECTIVE_COST)
        text_add(t, "  cost          %.6g US dollars a step\n", plan_objective(r, best));
    if (r->objective == OBJECTIVE_ENERGY)
        text_add(t, "  energy        %.6g kJ a step\n", plan_objective(r, best) / 1e3);
    certificate_text(r, t);
    search_text(r, t);
}

static Err measured_text(const PlanReport *r, Arena *temp, Text *out)
{
    TextTable t;
    if (r->n_measured == 0) return OK;
    TRY(table_open(&t, 4, r->n_measured + 1, temp));
    for (int i = 0; i < 3; i++) table_right(&t, i);
    table_cell(&t, "planned ms");
    table_cell(&t, "measured");
    table_cell(&t, "calibrated");
    table_cell(&t, "plan");
    for (int i = 0; i < r->n_measured; i++) {
        const MeasuredPlan *m = &r->measured[i];
        const char *words;
        TRY(point_text(&m->row.point, temp, &words));
        table_cell(&t, "%.3f", 1e3 * m->planned_s);
        table_cell(&t, "%.3f", 1e3 * m->measured_s);
        table_cell(&t, "%.3f", 1e3 * m->row.time.step_s);
        table_cell(&t, "%s", words);
    }
    text_add(out,
             "\nMEASURED, in %.1f s; calibrated: work takes %.3g and transfers take %.3g times the "
             "seconds\nof the cluster file. The plan that measures the fastest is the best one.\n",
             r->measure_s, r->factors.work, r->factors.transfers);
    table_text(&t, "  ", out);
    return OK;
}

static Err frontier_text(const PlanReport *r, Arena *temp, Text *out)
{
    TextTable t;
    char step[24];
    if (r->n_frontier < 2) return OK;
    TRY(table_open(&t, 6, r->n_frontier + 1, temp));
    for (int i = 0; i < 4; i++) table_right(&t, i);
    table_cell(&t, "ranks");
    table_cell(&t, "limit");
    table_cell(&t, "ms");
    table_cell(&t, "memory");
    table_cell(&t, "certificate");
    table_cell(&t, "plan");
    for (int i = 0; i < r->n_frontier; i++) {
        const PlanRow *row = &r->frontier[i];
        char a[24], b[24];
        const char *words;
        TRY(point_text(&row->point, temp, &words));
        table_cell(&t, "%d", row->ranks);
        table_cell(&t, "%s", text_bytes((int64_t)row->limit_bytes, a));
        table_cell(&t, "%.3f", 1e3 * row->time.step_s);
        table_cell(&t, "%s", text_bytes((int64_t)row->memory_bytes, b));
        if (row->complete)
            table_cell(&t, "optimal");
        else
            table_cell(&t, "within %.1f%%", 100 * (1 - row->bound_s / row->time.step_s));
        table_cell(&t, "%s", words);
    }
    text_add(out,
             "\nFRONTIER, the best plan from its memory up to a limit, for each number of ranks\n");
    table_text(&t, "  ", out);
    if (r->frontier_step > 0)
        text_add(
            out,
            "  limits in steps of %s; those of plans whose layers are alike, --alike, are exact\n",
            text_bytes((int64_t)r->frontier_step, step));
    if (r->is_frontier_cut) text_add(out, "  less memory than in the last rows is left out\n");
    return OK;
}

static Err choice_text(const PlanReport *r, Arena *temp, Text *t)
{
    const PlanRow *with = &r->with_choice;
    char why[80], memory[24];
    const char *words;
    if (!r->choice) return OK;
    text_add(t, "\nCHOICE %s\n", r->choice);
    if (r->n_choice == 0) {
        text_add(t, "  %s\n", r->no_choice);
        return OK;
    }
    TRY(point_text(&with->point, temp, &words));
    text_add(t, "  best with it  %s\n", words);
    text_add(t, "  step          %.3f ms, %+.2f%%; memory %s\n", 1e3 * with->time.step_s,
             100 * (with->time.step_s / r->row[0].time.step_s - 1),
             text_bytes((int64_t)with->memory_bytes, memory));
    if (with->time.step_s <= r->row[0].time.step_s) return OK;
    why_text(r, with, why, sizeof why);
    text_add(t, "  it costs      %s\n", why);
    return OK;
}

Err plan_report_text(const PlanReport *r, Arena *temp, Text *out)
{
    text_add(out, "%s, %lld sequences of %lld tokens a step, %s\n", r->model->name,
             (long long)r->config->batch_global, (long long)r->config->data_seq_len,
             option_text(r->config->precision_compute));
    best_text(r, out);
    TRY(rows_text(r, temp, out));
    TRY(measured_text(r, temp, out));
    TRY(frontier_text(r, temp, out));
    TRY(choice_text(r, temp, out));
    text_add(out, "\nPLAN FILE\n");
    for (const char *line = r->plan; *line;) {
        const size_t n = strcspn(line, "\n");
        if (*line != '#') text_add(out, "  %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    return OK;
}
