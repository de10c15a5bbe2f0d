/* published_regret.c -- groups of rows, and the choice in each. */
#include "support/published_regret.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MIN_ROWS = 5, MAX_GROUP = 512 };

typedef struct {
    int groups, rows;
    double sum, most, rank_sum;
} SourceRegret;

static bool is_same_group(const RowRecord *a, const RowRecord *b)
{
    return strcmp(a->source, b->source) == 0 && strcmp(a->group, b->group) == 0;
}

/* True if the row has a prediction by constants that were not fitted on it. With folds, rows in FP8
 * are not dealt and have none. */
static bool is_predicted(const PublishedRows *p, const RowRecord *r)
{
    return !r->skip && !r->quarter && (!p->deal_all || r->dealt);
}

/* The rows of a group that are predicted. */
static int rows_of(const PublishedRows *p, int first, const RowRecord **out)
{
    int n = 0;
    for (int i = first; i < p->n_rows && n < MAX_GROUP; i++)
        if (is_same_group(&p->row[i], &p->row[first]) && is_predicted(p, &p->row[i]))
            out[n++] = &p->row[i];
    return n;
}

static double rank_of(const RowRecord *const *row, int n, int i, bool measured)
{
    double rank = 0;
    for (int k = 0; k < n; k++) {
        const double x = measured ? row[k]->plan.step_s : row[k]->seconds,
                     y = measured ? row[i]->plan.step_s : row[i]->seconds;
        rank += x < y ? 1 : k != i && x <= y ? 0.5 : 0;
    }
    return rank;
}

static double spearman(const RowRecord *const *row, int n)
{
    const double mean = (n - 1) / 2.0;
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < n; i++) {
        const double x = rank_of(row, n, i, true) - mean, y = rank_of(row, n, i, false) - mean;
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 1;
}

/* A planner takes no plan that is not said to fit, if another is. */
static bool fits(const RowRecord *r)
{
    return r->needed_bytes <= 0 || stack_fits(r->stack, r->needed_bytes);
}

static bool is_better(const RowRecord *a, const RowRecord *b)
{
    return fits(a) != fits(b) ? fits(a) : a->seconds < b->seconds;
}

static void add_group(const RowRecord *const *row, int n, SourceRegret *to)
{
    int chosen = 0, best = 0;
    for (int i = 1; i < n; i++) {
        if (is_better(row[i], row[chosen])) chosen = i;
        if (row[i]->plan.step_s < row[best]->plan.step_s) best = i;
    }
    const double regret = row[chosen]->plan.step_s / row[best]->plan.step_s - 1;
    to->groups++;
    to->rows += n;
    to->sum += regret;
    to->rank_sum += spearman(row, n);
    if (regret > to->most) to->most = regret;
}

/* True if no row before it is of its group, or of its source. */
static bool is_first(const PublishedRows *p, int row, bool of_source)
{
    for (int i = 0; i < row; i++)
        if (of_source ? strcmp(p->row[i].source, p->row[row].source) == 0
                      : is_same_group(&p->row[i], &p->row[row]))
            return false;
    return true;
}

static void print_source(const PublishedRows *p, const char *source)
{
    SourceRegret r = {0};
    for (int i = 0; i < p->n_rows; i++) {
        const RowRecord *row[MAX_GROUP];
        if (strcmp(p->row[i].source, source) != 0 || !is_first(p, i, false)) continue;
        const int n = rows_of(p, i, row);
        if (n >= MIN_ROWS) add_group(row, n, &r);
    }
    printf("%s regret groups=%d rows=%d", source, r.groups, r.rows);
    if (r.groups > 0)
        printf(" mean=%.2f max=%.2f spearman=%.3f", 100 * r.sum / r.groups, 100 * r.most,
               r.rank_sum / r.groups);
    printf("\n");
}

void published_regret(const PublishedRows *p)
{
    for (int i = 0; i < p->n_rows; i++)
        if (is_first(p, i, true)) print_source(p, p->row[i].source);
}
