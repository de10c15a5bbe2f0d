/* mixed_bound.c -- the knapsack of a stage, relaxed: each unit starts from the choice of fewest
 * bytes, and the remaining bytes are spent where they save most seconds each. Parts of the last
 * exchange are allowed, so no real choice is faster. */
#include "plan/search/mixed_parts.h"

#include <math.h>
#include <stdlib.h>

/* An end of a frontier's lower convex hull: bytes more and seconds less for each of n units. */
typedef struct {
    double bytes, seconds;
    int n;
} Exchange;

typedef struct {
    double bytes, seconds; /* of the units as they are now */
    int n;
    Exchange at[MAX_STAGE_GROUPS * MAX_UNIT_CHOICES];
} Relaxed;

static int by_gain(const void *a, const void *b)
{
    const Exchange *x = a, *y = b;
    const double left = x->seconds * y->bytes, right = y->seconds * x->bytes;
    return left > right ? -1 : left < right;
}

/* Adds the exchanges along the lower convex hull of a Pareto list. */
static void add_hull(const Frontier *f, int n, Relaxed *r)
{
    r->bytes += n * f->at[0].bytes;
    r->seconds += n * f->at[0].seconds;
    for (int i = 0; i < f->n - 1;) {
        int best = i + 1;
        for (int k = i + 2; k < f->n; k++) {
            const double gain =
                (f->at[i].seconds - f->at[k].seconds) * (f->at[best].bytes - f->at[i].bytes);
            if (gain >=
                (f->at[i].seconds - f->at[best].seconds) * (f->at[k].bytes - f->at[i].bytes))
                best = k;
        }
        r->at[r->n++] = (Exchange){f->at[best].bytes - f->at[i].bytes,
                                   f->at[i].seconds - f->at[best].seconds, n};
        i = best;
    }
}

static double spend(Relaxed *r, double limit)
{
    double left = limit - r->bytes;
    if (left < 0) return (double)INFINITY;
    qsort(r->at, (size_t)r->n, sizeof *r->at, by_gain);
    for (int i = 0; i < r->n && left > 0; i++) {
        const Exchange *e = &r->at[i];
        const double all = e->n * e->bytes, part = all <= left ? 1 : left / all;
        r->seconds -= part * e->n * e->seconds;
        left -= part * all;
    }
    return r->seconds;
}

static Err stage_bound(const MixedCosts *c, const MixedStage *s, const SumWeights *w, double limit,
                       Arena *temp, double *out)
{
    Relaxed r = {0};
    for (int g = 0; g < s->n; g++) {
        const StageGroup *group = &s->group[g];
        FrontierPoint point[MAX_UNIT_CHOICES];
        const Frontier *f;
        for (int i = 0; i < c->n[group->class]; i++) {
            const UnitChoice *choice = &c->choice[group->class][i];
            point[i] =
                (FrontierPoint){choice_bytes(group, choice), choice_seconds(w, choice), i, 0};
        }
        TRY(frontier_open(point, c->n[group->class], 0, temp, &f));
        add_hull(f, group->n, &r);
    }
    *out = spend(&r, limit) + stage_before(w, s);
    return OK;
}

Err mixed_bound(const MixedCosts *c, double limit_bytes, Arena *temp, double *out)
{
    *out = 0;
    for (int i = 0; i < c->stages; i++)
        for (int k = 0; k < N_WEIGHTS; k++) {
            const size_t mark = arena_mark(temp);
            const double limit = stage_limit(c, i, limit_bytes);
            double seconds;
            if (!isfinite(stage_before(&mixed_weights[k], &c->stage[i]))) continue;
            TRY(stage_bound(c, &c->stage[i], &mixed_weights[k], limit, temp, &seconds));
            arena_rewind(temp, mark);
            if (seconds > *out) *out = seconds;
        }
    return OK;
}
