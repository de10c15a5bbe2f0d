/* limits.h -- the best plan for every limit of memory, by searches under falling limits.
 *
 *     limit      80.0            61.2 - 1 byte       33.4 - 1 byte    ...    none fits
 *     best plan  61.2 GiB, 9 s   33.4 GiB, 11 s      30.1 GiB, 14 s
 *
 * A plan is the best from its own bytes up to its limit: the list has an answer for every limit. */
#ifndef PLAN_SEARCH_LIMITS_H
#define PLAN_SEARCH_LIMITS_H

#include <stdbool.h>
#include "base/err.h"

/* Finds the best plan within a limit; *bytes: what it needs, at most the limit. */
typedef Err LimitSearch(void *context, double limit_bytes, double *bytes, bool *found);

typedef struct {
    double from_bytes; /* the greatest limit */
    double step_bytes; /* limits are multiples of it, below the greatest; 0: one byte less each */
    int most;          /* searches */
    LimitSearch *search;
    void *context;
} LimitWalk;

/* Local. *cut: there may be plans that need less than the last one. */
Err plan_walk_limits(const LimitWalk *w, bool *cut);

#endif
