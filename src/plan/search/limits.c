/* limits.c -- the next limit is what excludes the best plan of the last. */
#include "plan/search/limits.h"

#include <math.h>

Err plan_walk_limits(const LimitWalk *w, bool *cut)
{
    double limit = w->from_bytes;
    *cut = true;
    for (int i = 0; i < w->most && *cut; i++) {
        double bytes;
        bool found;
        TRY(w->search(w->context, limit, &bytes, &found));
        if (found) limit = bytes - 1;
        if (found && w->step_bytes > 0) limit = floor(limit / w->step_bytes) * w->step_bytes;
        *cut = found && limit > 0;
    }
    return OK;
}
