/* frontier.c -- lists are sorted by bytes; sums go through ranges of bytes of equal width. */
#include "plan/search/frontier.h"

#include <math.h>
#include <stdlib.h>

/* Fewer points before less seconds, so that the first of equal bytes is the fastest. */
static int by_bytes(const void *a, const void *b)
{
    const FrontierPoint *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return x->left != y->left ? x->left - y->left : x->right - y->right;
}

/* Drops points that are no faster than one of fewer bytes; sorted. */
static int drop_dominated(FrontierPoint *at, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (kept == 0 || at[i].seconds < at[kept - 1].seconds) at[kept++] = at[i];
    return kept;
}

Err frontier_open(const FrontierPoint *choice, int n, int base, Arena *arena, const Frontier **out)
{
    Frontier *f;
    TRY(ARENA_NEW(arena, 1, &f));
    TRY(ARENA_NEW(arena, n, &f->at));
    for (int i = 0; i < n; i++) f->at[i] = choice[i];
    qsort(f->at, (size_t)n, sizeof *f->at, by_bytes);
    f->n = drop_dominated(f->at, n);
    f->base = base;
    *out = f;
    return OK;
}

/* Adds a point to the range of bytes that it is in. */
static void add_to_range(FrontierPoint *range, FrontierPoint p, FrontierRounding rounding)
{
    if (p.seconds < range->seconds || (p.seconds == range->seconds && p.bytes < range->bytes)) {
        if (rounding == ROUND_DOWN && range->bytes < p.bytes) p.bytes = range->bytes;
        *range = p;
    } else if (rounding == ROUND_DOWN && p.bytes < range->bytes) {
        range->bytes = p.bytes;
    }
}

Err frontier_sum(const Frontier *a, const Frontier *b, FrontierRounding rounding, Arena *arena,
                 const Frontier **out)
{
    const double low = a->at[0].bytes + b->at[0].bytes,
                 high = a->at[a->n - 1].bytes + b->at[b->n - 1].bytes;
    const double width = (high - low) / MAX_FRONTIER;
    Frontier *f;
    TRY(ARENA_NEW(arena, 1, &f));
    const int ranges = a->n * b->n < MAX_FRONTIER ? a->n * b->n : MAX_FRONTIER;
    TRY(ARENA_NEW(arena, ranges, &f->at));
    f->left = a;
    f->right = b;
    if (ranges == MAX_FRONTIER)
        for (int i = 0; i < ranges; i++)
            f->at[i] = (FrontierPoint){(double)INFINITY, (double)INFINITY, 0, 0};
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++) {
            const FrontierPoint p = {a->at[i].bytes + b->at[k].bytes,
                                     a->at[i].seconds + b->at[k].seconds, i, k};
            if (ranges < MAX_FRONTIER) {
                f->at[f->n++] = p;
                continue;
            }
            const int at = width > 0 ? (int)((p.bytes - low) / width) : 0;
            add_to_range(&f->at[at < ranges ? at : ranges - 1], p, rounding);
        }
    if (ranges == MAX_FRONTIER)
        for (int i = 0; i < ranges; i++)
            if (isfinite(f->at[i].seconds)) f->at[f->n++] = f->at[i];
    qsort(f->at, (size_t)f->n, sizeof *f->at, by_bytes);
    f->n = drop_dominated(f->at, f->n);
    *out = f;
    return OK;
}

Err frontier_power(const Frontier *a, int times, FrontierRounding rounding, Arena *arena,
                   const Frontier **out)
{
    const Frontier *all = NULL, *square = a;
    for (int left = times; left > 0; left /= 2) {
        if (left % 2 && all) TRY(frontier_sum(all, square, rounding, arena, &all));
        if (left % 2 && !all) all = square;
        if (left > 1) TRY(frontier_sum(square, square, rounding, arena, &square));
    }
    *out = all;
    return OK;
}

int frontier_find(const Frontier *f, double bytes)
{
    int found = -1;
    for (int i = 0; i < f->n && f->at[i].bytes <= bytes; i++) found = i;
    return found;
}

void frontier_count(const Frontier *f, int point, int *count)
{
    const FrontierPoint *p = &f->at[point];
    if (!f->left) {
        count[f->base + p->left]++;
        return;
    }
    frontier_count(f->left, p->left, count);
    frontier_count(f->right, p->right, count);
}
