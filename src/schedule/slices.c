/* slices.c -- equal slices by bisection, planned slices by a search.
 *
 * The plan: under a bound on the longest slice, dynamic programming over the points finds the least
 * sum. The next round has a bound just below the longest slice of that answer, and so on. Each
 * round has a larger sum and a shorter ramp. The best of all rounds is the optimum; rounds end when
 * the sums alone exceed it. */
#include "schedule/slices.h"

#include <stdbool.h>
#include "base/math.h"

double slice_time(const SliceCost *c, int64_t before, int64_t tokens)
{
    const double n = (double)tokens, b = (double)before;
    const double time = c->fixed + c->token * n + c->pair * (n * b + n * (n + 1) / 2);
    return time > c->least ? time : c->least;
}

/* Counts the points at which a cut is allowed: 0 to *n, `step` tokens apart, except the last. */
static Err check_points(const SliceRequest *r, int least, int64_t step, int64_t *n)
{
    if (r->slices < least || r->tokens < 1 || r->multiple < 1)
        return err_fail(ERR_CONFIG,
                        "parallel.slices is %d, for %lld tokens cut at multiples of %lld; each "
                        "must be at least 1",
                        r->slices, (long long)r->tokens, (long long)r->multiple);
    *n = (r->tokens + step - 1) / step;
    if (r->slices > *n)
        return err_fail(ERR_CONFIG,
                        "parallel.slices is %d; a sequence of %lld tokens, cut at multiples of "
                        "%lld, has at most %lld",
                        r->slices, (long long)r->tokens, (long long)step, (long long)*n);
    return OK;
}

static double plan_time(const SliceCost *c, const SliceRequest *r, int n, const int64_t *cut)
{
    double sum = 0, most = 0;
    for (int q = 0; q < n; q++) {
        const double time = slice_time(c, cut[q], cut[q + 1] - cut[q]);
        sum += time;
        if (most < time) most = time;
    }
    return r->micros * sum + (r->stages - 1) * most;
}

/* Returns the first point from `low` to `high` at which the time reaches `goal`. */
static int64_t nearest_point(const SliceCost *c, int64_t step, double goal, int64_t low,
                             int64_t high)
{
    while (high > low) { /* the first point that is not below the goal */
        const int64_t middle = low + (high - low) / 2;
        if (slice_time(c, 0, middle * step) < goal)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

Err slices_equal(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out)
{
    const SliceCost slope = {.token = c->token, .pair = c->pair};
    const double all = slice_time(&slope, 0, r->tokens);
    int64_t *cut, n;
    TRY(check_points(r, 1, r->multiple, &n));
    TRY(ARENA_NEW(arena, r->slices + 1, &cut));
    int64_t point = 0;
    for (int q = 1; q < r->slices; q++) {
        const double goal = all * q / r->slices;
        const int64_t low = point + 1, high = n - (r->slices - q); /* at least one point each */
        point = nearest_point(&slope, r->multiple, goal, low, high);
        const double above = slice_time(&slope, 0, point * r->multiple) - goal;
        if (point > low && goal - slice_time(&slope, 0, (point - 1) * r->multiple) < above) point--;
        cut[q] = point * r->multiple;
    }
    cut[r->slices] = r->tokens;
    *out = (SlicePlan){r->slices, cut, plan_time(c, r, r->slices, cut)};
    return OK;
}

/* The best split of the tokens before a point into a number of slices (row 0: any number). */
typedef struct {
    double sum, most; /* of the slices' times; sum < 0: no split is possible */
    int from;         /* the point before */
    int slices;       /* slices up to here */
} SlicePrefix;

typedef struct {
    const SliceCost *cost;
    int64_t tokens, step;
    int points, rows; /* rows: the number of slices requested; 0 for any number */
    bool any;
    SlicePrefix *prefix; /* [rows + 1][points + 1] */
} SliceSearch;

static int64_t point_at(const SliceSearch *s, int point)
{
    return min_i64(point * s->step, s->tokens);
}

static SlicePrefix *prefix_at(const SliceSearch *s, int row, int point)
{
    return &s->prefix[row * (s->points + 1) + point];
}

/* Sums of the same slices in another order differ by rounding; the longest slice then decides. */
static bool better(double sum, double most, const SlicePrefix *than)
{
    const double near = 1e-12 * than->sum;
    if (than->sum < 0 || sum < than->sum - near) return true;
    return sum <= than->sum + near && most < than->most;
}

static void search_point(SliceSearch *s, int row, int point, double bound)
{
    SlicePrefix best = {.sum = -1};
    const int before = s->any ? row : row - 1;
    for (int from = point - 1; from >= 0; from--) {
        const SlicePrefix *w = prefix_at(s, before, from);
        const int64_t b = point_at(s, from);
        const double time = slice_time(s->cost, b, point_at(s, point) - b);
        if (time >= bound) break; /* longer slices take longer */
        if (w->sum < 0) continue;
        const double sum = w->sum + time, most = w->most > time ? w->most : time;
        if (better(sum, most, &best)) best = (SlicePrefix){sum, most, from, w->slices + 1};
    }
    *prefix_at(s, row, point) = best;
}

/* Finds the best splits whose slices are all shorter than `bound`; O(rows * points^2). */
static const SlicePrefix *search(SliceSearch *s, double bound)
{
    for (int row = 0; row <= s->rows; row++)
        for (int point = 0; point <= s->points; point++) {
            if (point == 0 || (row == 0 && !s->any)) /* the empty prefix, in no slices */
                *prefix_at(s, row, point) =
                    (SlicePrefix){.sum = point == 0 && (row == 0 || s->any) ? 0 : -1};
            else
                search_point(s, row, point, bound);
        }
    return prefix_at(s, s->rows, s->points);
}

static void write_cuts(const SliceSearch *s, int64_t *cut)
{
    const SlicePrefix *w = prefix_at(s, s->rows, s->points);
    cut[w->slices] = s->tokens;
    for (int row = s->rows; w->slices > 0; w = prefix_at(s, row, w->from)) {
        if (!s->any) row--;
        cut[w->slices - 1] = point_at(s, w->from);
    }
}

Err slices_planned(const SliceCost *c, const SliceRequest *r, Arena *arena, SlicePlan *out)
{
    const int64_t all = r->multiple < 1 ? 1 : (r->tokens + r->multiple - 1) / r->multiple;
    const int64_t step = r->multiple * ((all + MAX_CUT_POINTS - 1) / MAX_CUT_POINTS);
    int64_t *cut, n;
    TRY(check_points(r, 0, step, &n));
    TRY(ARENA_NEW(arena, n + 1, &cut));
    const size_t mark = arena_mark(arena);
    SliceSearch s = {.cost = c, .tokens = r->tokens, .step = step, .points = (int)n};
    s.any = r->slices == 0;
    s.rows = s.any ? 0 : r->slices;
    TRY(ARENA_NEW(arena, (int64_t)(s.rows + 1) * (n + 1), &s.prefix));

    SlicePlan best = {.time = -1};
    const SlicePrefix *w = search(&s, 2 * slice_time(c, 0, r->tokens) + 1);
    while (w->sum >= 0 && (best.time < 0 || r->micros * w->sum < best.time)) {
        const double time = r->micros * w->sum + (r->stages - 1) * w->most;
        if (best.time < 0 || time < best.time) {
            write_cuts(&s, cut);
            best = (SlicePlan){w->slices, cut, time};
        }
        w = search(&s, w->most);
    }
    arena_rewind(arena, mark);
    *out = best;
    return OK;
}
