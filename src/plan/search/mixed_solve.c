/* mixed_solve.c -- the knapsack of a stage, exact up to the rounding of frontiers; and plans from
 * it, played.
 *
 *     weights                     work, gathers     seconds of a stage as one sum
 *     choices of stage 0          12 x zero 0, 4 x zero 3
 *     in blocks, or spread        0 0 0 0 .. 3 3    0 0 0 3 0 0 0 3 ..
 *
 * A stage of a plan that does not fit has its limit lowered by the excess, and is solved again. */
#include "plan/search/mixed_parts.h"

#include <math.h>
#include <string.h>

enum { MAX_SHRINKS = 12 };

/* Mostly one sum decides: the others are for steps that two of them share. */
const SumWeights mixed_weights[N_WEIGHTS] = {
    {{1}},
    {{[SUM_DRAIN] = 1}},
    {{[SUM_ENDS] = 1}},
    {{[SUM_GATHER] = 1}},
    {{[SUM_REDUCE] = 1}},
    {{[SUM_FILL] = 1}},
    {{[SUM_WORK] = .75, [SUM_GATHER] = .25}},
    {{[SUM_WORK] = .5, [SUM_GATHER] = .5}},
    {{[SUM_WORK] = .25, [SUM_GATHER] = .75}},
    {{[SUM_WORK] = .75, [SUM_REDUCE] = .25}},
    {{[SUM_WORK] = .5, [SUM_REDUCE] = .5}},
    {{[SUM_WORK] = .25, [SUM_REDUCE] = .75}},
    {{[SUM_WORK] = .5, [SUM_GATHER] = .25, [SUM_REDUCE] = .25}},
    {{[SUM_WORK] = .98, [SUM_GATHER] = .01, [SUM_REDUCE] = .01}},
    {{[SUM_WORK] = .34, [SUM_ENDS] = .33, [SUM_FILL] = .33}},
};

typedef struct {
    const MixedCosts *c;
    const SumWeights *w;
    const Frontier **stage;  /* [stages] */
    double *limit;           /* [stages]: of the bytes of its units */
    const UnitChoice **unit; /* [units] */
    const UnitSummary **summary;
    int *count; /* [MAX_STAGE_GROUPS][MAX_UNIT_CHOICES] */
    Arena *temp;
} Solver;

static Err group_frontier(const Solver *v, const MixedStage *s, int g, FrontierRounding rounding,
                          const Frontier **out)
{
    const MixedCosts *c = v->c;
    const StageGroup *group = &s->group[g];
    FrontierPoint point[MAX_UNIT_CHOICES];
    for (int i = 0; i < c->n[group->class]; i++) {
        const UnitChoice *choice = &c->choice[group->class][i];
        point[i] = (FrontierPoint){choice_bytes(group, choice), choice_seconds(v->w, choice), i, 0};
    }
    TRY(frontier_open(point, c->n[group->class], g * MAX_UNIT_CHOICES, v->temp, out));
    return frontier_power(*out, group->n, rounding, v->temp, out);
}

static Err stage_frontier(const Solver *v, const MixedStage *s, FrontierRounding rounding,
                          const Frontier **out)
{
    for (int g = 0; g < s->n; g++) {
        const Frontier *f;
        TRY(group_frontier(v, s, g, rounding, &f));
        if (g == 0)
            *out = f;
        else
            TRY(frontier_sum(*out, f, rounding, v->temp, out));
    }
    return OK;
}

/* Stages with the same groups have the same frontier, unless their frames differ. */
static bool same_groups(const MixedStage *a, const MixedStage *b)
{
    if (a->n != b->n) return false;
    for (int g = 0; g < a->n; g++) {
        const StageGroup *x = &a->group[g], *y = &b->group[g];
        if (x->class != y->class || x->n != y->n || x->held_i != y->held_i ||
            x->held_w != y->held_w)
            return false;
    }
    return true;
}

static Err open_frontiers(const Solver *v, FrontierRounding rounding)
{
    for (int i = 0; i < v->c->stages; i++) {
        int like = 0;
        while (like < i && !same_groups(&v->c->stage[like], &v->c->stage[i])) like++;
        v->stage[i] = v->stage[like];
        if (like == i) TRY(stage_frontier(v, &v->c->stage[i], rounding, &v->stage[i]));
    }
    return OK;
}

/* The bound of the weights, by frontiers that are rounded down. */
static Err exact_bound(const Solver *v, double limit_bytes, double *out)
{
    TRY(open_frontiers(v, ROUND_DOWN));
    for (int i = 0; i < v->c->stages; i++) {
        const double before = stage_before(v->w, &v->c->stage[i]);
        const int at = frontier_find(v->stage[i], stage_limit(v->c, i, limit_bytes));
        if (at < 0) *out = (double)INFINITY;
        if (at >= 0 && isfinite(before) && v->stage[i]->at[at].seconds + before > *out)
            *out = v->stage[i]->at[at].seconds + before;
    }
    return OK;
}

/* ---- orders of the layers ---- */

/* The choice of the i-th of n units: of those left the first, or the one that is most behind its
 * share. */
static int next_choice(const int *count, const int *used, int i, int n, bool spread)
{
    int best = -1;
    double most = -1;
    for (int k = 0; k < MAX_UNIT_CHOICES; k++) {
        if (used[k] == count[k]) continue;
        if (!spread) return k;
        const double behind = (double)count[k] * (i + 1) / n - used[k];
        if (behind > most) best = k, most = behind;
    }
    return best;
}

static void assign(const Solver *v, const MixedStage *s, bool spread)
{
    for (int g = 0; g < s->n; g++) {
        const StageGroup *group = &s->group[g];
        const int *count = &v->count[g * MAX_UNIT_CHOICES];
        int used[MAX_UNIT_CHOICES] = {0};
        for (int i = 0; i < group->n; i++) {
            const int k = next_choice(count, used, i, group->n, spread);
            used[k]++;
            v->unit[group->first + i] = &v->c->choice[group->class][k];
            v->summary[group->first + i] = &v->unit[group->first + i]->summary;
        }
    }
}

/* Bytes of a stage beside its units: scratch, gathered packs, gradients on their way; without what
 * choice_bytes counts. */
static double extra_bytes(const Solver *v, const MixedStage *s)
{
    const StageGroup *last = &s->group[s->n - 1];
    const UnitSummary *top = last->top ? v->summary[last->first] : NULL;
    double scratch = 0, packs = 0, grads = 0;
    for (int g = 0; g < s->n; g++)
        for (int u = s->group[g].first; u < s->group[g].first + s->group[g].n; u++) {
            const UnitSummary *sum = v->summary[u];
            for (int p = 0; p < N_PHASES; p++) {
                const double bytes = (double)sum->scratch_bytes[p];
                if (bytes > scratch) scratch = bytes;
            }
            if ((double)sum->pack_bytes > packs) packs = (double)sum->pack_bytes;
            if ((double)sum->work_grad_bytes > grads) grads = (double)sum->work_grad_bytes;
        }
    const double counted = top ? (double)top->scratch_bytes[PHASE_F] + (double)top->pack_bytes : 0;
    return scratch + v->c->base.live * packs + 2 * grads - counted;
}

/* Chooses the units of a stage within its limit, which falls until they fit with all else. Returns
 * false if none do. Raises *counted to their bytes. */
static bool choose(const Solver *v, int i, double most, bool spread, double *counted)
{
    const MixedStage *s = &v->c->stage[i];
    for (int shrinks = 0; shrinks < MAX_SHRINKS; shrinks++) {
        const int at = frontier_find(v->stage[i], v->limit[i]);
        if (at < 0) return false;
        memset(v->count, 0, MAX_STAGE_GROUPS * MAX_UNIT_CHOICES * sizeof *v->count);
        frontier_count(v->stage[i], at, v->count);
        assign(v, s, spread);
        const double bytes = v->stage[i]->at[at].bytes + extra_bytes(v, s), over = bytes - most;
        if (bytes > *counted && over <= 0) *counted = bytes;
        if (over <= 0) return true;
        v->limit[i] = v->stage[i]->at[at].bytes - over;
    }
    return false;
}

/* Plays the plan of one kind of weights and one order; keeps it if it is the best so far. */
static Err try_order(const Solver *v, double limit_bytes, bool spread, PlanPoint *best,
                     CoarseTime *best_time, double *best_counted)
{
    const MixedCosts *c = v->c;
    PlanSearch *s = c->s;
    CoarseTime time;
    double counted = 0;
    for (int i = 0; i < c->stages; i++) {
        v->limit[i] = limit_bytes;
        if (!choose(v, i, limit_bytes, spread, &counted)) return OK;
    }
    TRY(search_play(s, &c->point, &c->base, v->summary, &time));
    s->counts.played++;
    if (time.step_s >= best_time->step_s || (double)time.peak_bytes > 1.05 * limit_bytes) return OK;
    UnitOptions *unit;
    const int n = c->base.n_units;
    TRY(ARENA_NEW(s->arena, n, &unit));
    for (int u = 0; u < n; u++) unit[u] = choice_options(c, v->unit[u], u);
    *best_time = time;
    *best_counted = counted;
    *best = c->point;
    best->unit = unit;
    best->n_units = n;
    return OK;
}

Err mixed_solve(const MixedCosts *c, double limit_bytes, double *bound_s, PlanPoint *out,
                CoarseTime *time, double *counted)
{
    Arena *temp = c->s->temp;
    const size_t mark = arena_mark(temp);
    Solver v = {.c = c, .temp = temp};
    *time = (CoarseTime){.step_s = (double)INFINITY};
    *counted = limit_bytes;
    TRY(ARENA_NEW(temp, c->stages, &v.stage));
    TRY(ARENA_NEW(temp, c->stages, &v.limit));
    TRY(ARENA_NEW(temp, c->base.n_units, &v.unit));
    TRY(ARENA_NEW(temp, c->base.n_units, &v.summary));
    TRY(ARENA_NEW(temp, MAX_STAGE_GROUPS * MAX_UNIT_CHOICES, &v.count));
    for (int k = 0; k < N_WEIGHTS; k++) {
        const size_t inner = arena_mark(temp);
        v.w = &mixed_weights[k];
        TRY(exact_bound(&v, limit_bytes, bound_s));
        TRY(open_frontiers(&v, ROUND_UP));
        TRY(try_order(&v, limit_bytes, false, out, time, counted));
        TRY(try_order(&v, limit_bytes, true, out, time, counted));
        arena_rewind(temp, inner);
    }
    arena_rewind(temp, mark);
    return OK;
}
