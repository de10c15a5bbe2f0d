/* search.c -- the searches of `sheaf plan`, and the rows of its report. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "cli/plan/verb.h"
#include "plan/search/limits.h"

/* Plans of a number of ranks; and, if layers differ, limits: then nearly each limit has a plan. */
enum { MAX_FRONTIER_PLANS = 64, FRONTIER_STEPS = 32 };

static void show_progress(void *context, const SearchCounts *counts)
{
    PlanVerb *v = context;
    progress_parts(&v->line, counts->played < v->max_nodes ? counts->played : v->max_nodes,
                   v->max_nodes);
}

SaveMemory plan_saves(const PlanVerb *v)
{
    if (!v->space.cluster->host_memory) return SAVE_MEMORY_NONE;
    return save_memory(v->report.config->run_save_every);
}

PlanSearch plan_single(PlanVerb *v, int ranks, const PlanFixed *fixed)
{
    PlanSearch s = {.space = v->space,
                    .validates = v->report.config->run_valid_every > 0,
                    .save = plan_saves(v),
                    .max_played = v->max_nodes,
                    .max_linked = 400,
                    .arena = v->arena,
                    .temp = v->temp,
                    .cache = v->cache,
                    .progress = show_progress,
                    .context = v};
    s.space.ranks = ranks;
    s.space.fixed = *fixed;
    return s;
}

Err plan_open_search(PlanVerb *v, int ranks, const PlanFixed *fixed, PlanSearch *s)
{
    *s = plan_single(v, ranks, fixed);
    return plan_search_open(s);
}

static PlanRow row_of(const PlanSearch *s, const PlanRanking *r, int i, double limit)
{
    const PlanNode *node = &s->node[r->node[i]];
    const bool complete = r->complete && i == 0;
    const double bound_s = complete ? node->key_s : r->bound_s;
    return (PlanRow){.point = node->point,
                     .ranks = s->space.ranks,
                     .time = s->times[node->time],
                     .memory_bytes = node->memory_bytes,
                     .limit_bytes = limit,
                     .bound_s = bound_s,
                     .complete = complete,
                     .alike_s = node->key_s,
                     .alike_bound_s = bound_s};
}

/* Compares a row, if there is one, with plans whose layers differ. */
static Err search_mixed(PlanVerb *v, PlanSearch *s, double limit, PlanRow *row, bool *found)
{
    PlanReport *r = &v->report;
    MixedPlan mixed;
    if (v->flag.alike || !plan_mixes(&s->space)) return OK;
    const MixedRequest request = {.limit_bytes = limit,
                                  .best_s = *found ? row->time.step_s : HUGE_VAL,
                                  .max_bounded = v->max_nodes / 10,
                                  .max_solved = v->max_nodes / 320 + 1,
                                  .first = *found ? &row->point : NULL};
    TRY(plan_mixed(s, &request, &mixed));
    r->mixes = true;
    r->families += mixed.families;
    r->bounded += mixed.bounded;
    r->solved += mixed.solved;
    if (!mixed.found && !*found) return OK;
    if (!*found) *row = (PlanRow){.ranks = s->space.ranks, .limit_bytes = limit};
    if (mixed.found) {
        row->point = mixed.point;
        row->time = mixed.time;
        row->memory_bytes = mixed.memory_bytes;
    }
    *found = true;
    row->bound_s = mixed.bound_s;
    row->complete = mixed.bound_s >= row->time.step_s;
    return OK;
}

static void add_counts(PlanReport *r, const PlanSearch *s)
{
    r->counts.nodes += s->counts.nodes;
    r->counts.compiled += s->counts.compiled;
    r->counts.played += s->counts.played;
    r->counts.timed += s->counts.timed;
    r->counts.linked += s->counts.linked;
    r->counts.refused += s->counts.refused;
}

static bool is_row(const PlanReport *r, const PlanPoint *p)
{
    for (int i = 0; i < r->n_rows; i++)
        if (plan_same_mesh(&r->row[i].point, p)) return true;
    return false;
}

/* Counts the meshes that are not among the rows, and finds the smallest key of their plans. */
static void count_meshes(const PlanSearch *s, PlanReport *r)
{
    const PlanPoint *last = NULL;
    r->meshes = r->meshes_left = 0;
    r->left_s = 0;
    for (int i = 0; i < s->n; i++) {
        const PlanNode *node = &s->node[i];
        const bool is_new = !last || !plan_same_mesh(last, &node->point);
        last = &node->point;
        r->meshes += is_new;
        if (is_row(r, &node->point)) continue;
        r->meshes_left += is_new;
        if (node->level == LEVEL_REFUSED || node->memory_bytes > r->limit_bytes) continue;
        if (r->left_s == 0 || node->key_s < r->left_s) r->left_s = node->key_s;
    }
}

/* The best plan within a limit. */
static Err search_limit(PlanVerb *v, PlanSearch *s, double limit, PlanRow *out, bool *found)
{
    PlanRanking ranking;
    TRY(plan_search(s, limit, 1, false, &ranking));
    *found = ranking.n > 0;
    if (*found) *out = row_of(s, &ranking, 0, limit);
    return search_mixed(v, s, limit, out, found);
}

/* The rows of a number of ranks: the best plan, then those of other meshes. */
static void set_rows(const PlanSearch *s, const PlanRow *best, const PlanRanking *ranking,
                     PlanVerb *v)
{
    PlanReport *r = &v->report;
    r->n_rows = 1;
    r->row[0] = *best;
    for (int i = 0; i < ranking->n && r->n_rows < v->top; i++) {
        const PlanRow row = row_of(s, ranking, i, r->limit_bytes);
        if (!is_row(r, &row.point)) r->row[r->n_rows++] = row;
    }
    r->points = s->n;
}

/* The greatest memory of a node's device below `most`; 0: none has less. */
static double next_memory(const Cluster *c, int ranks, double most)
{
    double next = 0;
    for (int rank = 0; rank < ranks; rank += c->rates.level[0].ranks) {
        const double bytes = cluster_memory_bytes(c, rank);
        if (bytes < most && bytes > next) next = bytes;
    }
    return next;
}

/* Adds a row unless one of its mesh needs no more than `limit`. */
static void add_row(PlanReport *r, const PlanRow *row, double limit)
{
    for (int i = 0; i < r->n_rows; i++)
        if (plan_same_mesh(&r->row[i].point, &row->point) && r->row[i].memory_bytes <= limit)
            return;
    if (r->n_rows < MAX_PLAN_ROWS) r->row[r->n_rows++] = *row;
}

/* Adds the best plans within the memory of devices that have less than others, unless a row is one
 * of them. */
static Err add_smaller(PlanVerb *v, PlanSearch *s)
{
    PlanReport *r = &v->report;
    double limit = r->limit_bytes;
    while (v->linked && (limit = next_memory(v->linked, s->space.ranks, limit)) > 0) {
        PlanRanking ranking;
        PlanRow best;
        TRY(plan_search(s, limit, v->top, true, &ranking));
        bool found = ranking.n > 0;
        if (found) best = row_of(s, &ranking, 0, limit);
        TRY(search_mixed(v, s, limit, &best, &found));
        if (found) add_row(r, &best, limit);
        for (int i = 0; i < ranking.n; i++) {
            const PlanRow row = row_of(s, &ranking, i, limit);
            add_row(r, &row, limit);
        }
    }
    return OK;
}

/* A bound was too high: the certificate counts with it. */
static void loosen(const PlanSearch *s, PlanRow *row, bool *loose)
{
    if (s->excess == 0) return;
    *loose = row->complete;
    row->complete = false;
    if (row->bound_s > row->time.step_s / s->excess) row->bound_s = row->time.step_s / s->excess;
    row->alike_bound_s = row->alike_bound_s / s->excess;
}

typedef struct {
    PlanVerb *v;
    PlanSearch *s;
    int first; /* row of the frontier */
} FrontierWalk;

/* Adds a row. A search of layers that differ has a gap: a plan that is no slower than those of
 * higher limits takes their place. */
static void add_to_frontier(PlanReport *r, int first, PlanRow row)
{
    while (r->n_frontier > first && r->frontier[r->n_frontier - 1].time.step_s >= row.time.step_s)
        row.limit_bytes = r->frontier[--r->n_frontier].limit_bytes;
    r->frontier[r->n_frontier++] = row;
}

static Err search_below(void *context, double limit, double *bytes, bool *found)
{
    const FrontierWalk *w = context;
    bool loose;
    PlanRow row;
    TRY(search_limit(w->v, w->s, limit, &row, found));
    if (!*found) return OK;
    *bytes = row.memory_bytes;
    loosen(w->s, &row, &loose);
    add_to_frontier(&w->v->report, w->first, row);
    return OK;
}

/* The best plans below the memory of the frontier's last row. */
static Err search_frontier(PlanVerb *v, PlanSearch *s)
{
    PlanReport *r = &v->report;
    FrontierWalk all = {v, s, r->n_frontier - 1};
    const bool mixes = !v->flag.alike && plan_mixes(&s->space);
    const double step = mixes ? r->limit_bytes / FRONTIER_STEPS : 0,
                 below = r->frontier[all.first].memory_bytes - 1;
    const LimitWalk walk = {.from_bytes = step > 0 ? floor(below / step) * step : below,
                            .step_bytes = step,
                            .most = MAX_FRONTIER_PLANS - 1,
                            .search = search_below,
                            .context = &all};
    bool cut;
    TRY(plan_walk_limits(&walk, &cut));
    r->frontier_step = step;
    r->is_frontier_cut = r->is_frontier_cut || cut;
    return OK;
}

/* A search of layers that differ has a gap: one within less memory may find a faster plan. Bounds
 * stay those of all plans within the limit. */
static void take_faster(PlanRow *best, PlanRow *found)
{
    if (found->time.step_s >= best->time.step_s) return;
    best->point = found->point;
    best->time = found->time;
    best->memory_bytes = found->memory_bytes;
    best->complete = false;
    *found = *best;
}

/* The best plans of one number of ranks; those of the best number become the rows. */
static Err search_ranks(PlanVerb *v, int ranks)
{
    PlanReport *r = &v->report;
    PlanRanking ranking;
    PlanRow best;
    PlanSearch s;
    TRY(plan_open_search(v, ranks, &v->space.fixed, &s));
    TRY(plan_search(&s, r->limit_bytes, v->top, true, &ranking));
    bool found = ranking.n > 0, loose = false;
    if (found) best = row_of(&s, &ranking, 0, r->limit_bytes);
    TRY(search_mixed(v, &s, r->limit_bytes, &best, &found));
    if (found) {
        loosen(&s, &best, &loose);
        PlanRow *first = &r->frontier[r->n_frontier];
        r->frontier[r->n_frontier++] = best;
        if (v->flag.frontier) TRY(search_frontier(v, &s));
        take_faster(&best, first);
        if (r->n_rows == 0 || plan_objective(r, &best) < plan_objective(r, &r->row[0])) {
            set_rows(&s, &best, &ranking, v);
            TRY(add_smaller(v, &s));
            count_meshes(&s, r);
            r->loose_bound = loose;
        }
    }
    if (r->n_rows == 0) TRY(plan_refused(v, &s, &v->refused));
    add_counts(r, &s);
    return OK;
}

static Err search_choice(PlanVerb *v)
{
    PlanReport *r = &v->report;
    PlanFixed fixed = v->space.fixed;
    PlanSearch s;
    bool found;
    if (!v->flag.choice) return OK;
    r->choice = v->flag.choice;
    TRY(plan_fix(v->flag.choice, v->arena, &fixed));
    TRY(plan_open_search(v, r->row[0].ranks, &fixed, &s));
    TRY(search_limit(v, &s, r->limit_bytes, &r->with_choice, &found));
    add_counts(r, &s);
    r->n_choice = found;
    return found ? OK : plan_no_choice(v, &s, &r->no_choice);
}

static Err nothing_fits(PlanVerb *v)
{
    char limit[24];
    if (v->report.counts.nodes == 0) {
        const char *why;
        TRY(plan_no_space(v, v->ranks[v->n_ranks - 1], &why));
        return err_fail(ERR_CONFIG, "plan: %s; leave a key out, or change --gpus or batch.global%s",
                        why, v->n_ranks > 1 ? ", also for fewer ranks" : "");
    }
    if (v->refused) return err_fail(ERR_CONFIG, "plan: %s", v->refused);
    return err_fail(ERR_CONFIG,
                    "plan: no plan for %d%s ranks fits into %s a rank, of %d plans whose layers "
                    "are alike and %d "
                    "families of plans whose layers differ: use more ranks (--gpus), a smaller "
                    "data.seq_len, or "
                    "parallel.offload",
                    v->ranks[v->n_ranks - 1], v->n_ranks > 1 ? " or fewer" : "",
                    text_bytes((int64_t)v->report.limit_bytes, limit), v->report.counts.nodes,
                    v->report.families);
}

Err plan_search_all(PlanVerb *v)
{
    PlanReport *r = &v->report;
    const double start = now_s();
    r->n_rows = r->n_frontier = 0;
    r->mixes = r->is_frontier_cut = false;
    TRY(ARENA_NEW(v->arena, v->n_ranks * MAX_FRONTIER_PLANS, &r->frontier));
    v->refused = NULL;
    v->line = progress_begin("planning", r->model->name, 0);
    Err err = OK;
    for (int i = 0; i < v->n_ranks && err == OK; i++) err = search_ranks(v, v->ranks[i]);
    if (err == OK && r->n_rows > 0) err = search_choice(v);
    progress_end(&v->line);
    r->search_s += now_s() - start;
    TRY(err);
    return r->n_rows > 0 ? OK : nothing_fits(v);
}
