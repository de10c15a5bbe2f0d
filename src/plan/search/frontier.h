/* frontier.h -- Pareto lists of (bytes, seconds): bytes rise, seconds fall, and no point is worse
 * than another in both.
 *
 *     choices of a layer   (2, 9) (5, 6) (6, 5)
 *     two such layers      (4, 18) (7, 15) (8, 14) (10, 12) (11, 11) (12, 10)      sum
 *     32 layers            sums of sums: 5 of them, not 31                          power
 *
 * A sum whose points would be too many keeps one in each of MAX_FRONTIER ranges of bytes:
 *
 *     ROUND_DOWN   the least bytes and the least seconds of the range: a bound of all its points
 *     ROUND_UP     the fastest point of the range as it is: choices that exist
 *
 * so the two lists bracket the optimum under any limit of bytes. */
#ifndef PLAN_SEARCH_FRONTIER_H
#define PLAN_SEARCH_FRONTIER_H

#include "base/arena.h"

enum { MAX_FRONTIER = 384 };

typedef enum { ROUND_DOWN, ROUND_UP } FrontierRounding;

typedef struct {
    double bytes, seconds;
    int left, right; /* points of the two lists of a sum; left: the choice, in a list of choices */
} FrontierPoint;

typedef struct Frontier {
    int n;
    FrontierPoint *at;                   /* [n] */
    const struct Frontier *left, *right; /* NULL: a list of choices */
    int base;                            /* of choices: added to their numbers in frontier_count */
} Frontier;

/* Local. The Pareto list of choices; `left` of each is its number. */
Err frontier_open(const FrontierPoint *choice, int n, int base, Arena *arena, const Frontier **out);
/* Local. One point of each list, added up. */
Err frontier_sum(const Frontier *a, const Frontier *b, FrontierRounding rounding, Arena *arena,
                 const Frontier **out);
/* Local. The sum of `times` lists, at least 1, that are all `a`. */
Err frontier_power(const Frontier *a, int times, FrontierRounding rounding, Arena *arena,
                   const Frontier **out);
/* Local. The fastest point within the bytes; -1: there is none. */
int frontier_find(const Frontier *f, double bytes);
/* Local. Adds to count[base + choice] how often a point has each choice. */
void frontier_count(const Frontier *f, int point, int *count);

#endif
